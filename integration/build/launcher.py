"""What starts in an installed runtime: its tools on PATH, one whole CUDA toolkit, caches that are its own.

`bin/serve` (SGLang's server) and `bin/with-runtime COMMAND…` (anything else) of a runtime are copies of this file, so it
imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

# The CUDA release that torch of the cuda lock was built with. A JIT module links the libcudart of its compiler's
# toolkit and runs beside torch's.
RELEASE = "13.0"
# One file of FlashInfer's fused MoE for SM120 took 8.2 GB in cicc; ninja, left alone, starts two jobs more than cores.
BYTES_PER_JOB = 9 * 10**9


class Toolkit(NamedTuple):
    """A folder that a JIT would take for CUDA_HOME. `wrong` says why it cannot be used; empty where it can."""

    home: Path
    compiler: str | None
    headers: str | None
    wrong: tuple[str, ...]


def inspect(home: Path, release: str = RELEASE) -> Toolkit:
    """Ask the compiler and the headers in `home` for their releases, and look for what a module includes and links."""
    compiler = _release_of(home / "bin" / "nvcc")
    header = home / "include" / "cuda.h"
    version = re.search(r"#define CUDA_VERSION (\d+)", header.read_text(errors="replace")) if header.is_file() else None
    headers = f"{int(version[1]) // 1000}.{int(version[1]) % 1000 // 10}" if version else None
    wrong = []
    if compiler is None:
        wrong.append("no bin/nvcc that runs")
    elif compiler != release:
        wrong.append(f"nvcc is {compiler}, torch's CUDA is {release}")
    if headers is None:
        wrong.append("no include/cuda.h")
    elif compiler not in (None, headers):
        wrong.append(f"its headers are {headers}, its nvcc {compiler}")
    needed = ("include/curand_kernel.h", "lib64/libcudart.so", "lib64/stubs/libcuda.so")
    wrong += [f"no {name}" for name in needed if not (home / name).exists()]
    return Toolkit(home, compiler, headers, tuple(wrong))


def own_toolkit(environment: Mapping[str, str]) -> Path | None:
    """The user's: CUDA_HOME, CUDA_PATH, the nvcc on PATH, /usr/local/cuda; the order in which the JITs look."""
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if named:
        return Path(named)
    on_path = shutil.which("nvcc", path=environment.get("PATH", ""))
    if on_path:
        return Path(on_path).resolve().parents[1]
    return Path("/usr/local/cuda") if Path("/usr/local/cuda").is_dir() else None


def choose_toolkit(environment: Mapping[str, str], layer: Path | None) -> tuple[Toolkit | None, Toolkit | None]:
    """The toolkit to compile with, and the user's own where it was passed over.

    The user's own is taken where it fits; otherwise the one of the runtime's dependency `layer`. Where neither can be
    used, the first of the pair is what a JIT would find and why it fails, or None.
    """
    own = own_toolkit(environment)
    found = inspect(own) if own is not None else None
    if found is not None and not found.wrong:
        return found, None
    ours = layer / "toolkit" if layer is not None else None
    if ours is None or not ours.is_dir():
        return found, None
    return inspect(ours), found


def jobs(environment: Mapping[str, str], available: int, cores: int, reserved: int = 0) -> int:
    """Compiler processes that fit beside `reserved` bytes of pinned pools; MAX_JOBS of the user stays.

    `available` is in bytes. Always at least one.
    """
    if environment.get("MAX_JOBS", "").isdigit() and int(environment["MAX_JOBS"]) > 0:
        return int(environment["MAX_JOBS"])
    return max(1, min(cores, (available - reserved) // BYTES_PER_JOB))


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process may still take: of the machine, and of its control group where that has a limit.

    None where the kernel does not say. What the group holds of files is given back before it runs out.
    """
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
    except OSError:
        return None
    if found is None:
        return None
    free = int(found[1]) * 1024
    try:
        limit = int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    try:
        cached = re.search(r"(?m)^inactive_file (\d+)$", (cgroup / "memory.stat").read_text())
    except OSError:
        cached = None
    return min(free, max(0, limit + (int(cached[1]) if cached else 0)))


def reserved_memory(arguments: Sequence[str]) -> int:
    """Bytes of the host pool that the server's `arguments` ask for: --hicache-size is in GB."""
    for word, value in zip(arguments, [*arguments[1:], ""], strict=False):
        name, _, inline = word.partition("=")
        if name == "--hicache-size":
            try:
                return int(float(inline or value) * 10**9)
            except ValueError:
                return 0
    return 0


def environment_of(
    home: Path, layer: Path, identity: str, environment: Mapping[str, str], arguments: Sequence[str] = ()
) -> dict[str, str]:
    """The environment in which everything of the runtime in `home` runs; what the user set for a cache stays."""
    result = dict(environment)
    path = [str(home / "bin"), str(layer / "bin")]
    chosen, _ = choose_toolkit(environment, layer)
    if chosen is not None and not chosen.wrong:
        result["CUDA_HOME"] = result["CUDA_PATH"] = str(chosen.home)
        path.append(str(chosen.home / "bin"))
    result["PATH"] = os.pathsep.join([*path, environment.get("PATH", os.defpath)])
    for name, folder in caches(identity, environment).items():
        result.setdefault(name, str(folder))
    cores = len(os.sched_getaffinity(0))
    result["MAX_JOBS"] = str(jobs(environment, available_memory() or 0, cores, reserved_memory(arguments)))
    return result


def caches(identity: str, environment: Mapping[str, str]) -> dict[str, Path]:
    """Where each JIT keeps what it compiled: a folder that no other runtime can have filled."""
    base = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache")
    jit = base / "sm120" / "jit" / identity[:12]
    return {
        "FLASHINFER_WORKSPACE_BASE": jit / "flashinfer",
        "SGLANG_JIT_CACHE_DIR": jit / "sglang",
        "TVM_FFI_CACHE_DIR": jit / "tvm-ffi",
        "TRITON_CACHE_DIR": jit / "triton",
        "TORCHINDUCTOR_CACHE_DIR": jit / "inductor",
        "TILELANG_CACHE_DIR": jit / "tilelang",
        "SGLANG_CUTE_AOT_CACHE_DIR": jit / "cute",
        "SGLANG_DG_CACHE_DIR": jit / "deep-gemm",
    }


def _release_of(nvcc: Path) -> str | None:
    try:
        done = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    return found[1] if found else None


def main(name: str, arguments: list[str]) -> None:
    """Become the server (`serve`) or any command (`with-runtime`) of the runtime in which this file lies."""
    home = Path(__file__).resolve().parent
    try:
        record = json.loads((home / "runtime.json").read_text())
        layer, identity = home.parents[1] / "deps" / record["deps"], record["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        refuse("runtime-record", f"{home / 'runtime.json'}: does not read", "make runtime")
    environment = environment_of(home, layer, identity, os.environ, arguments)
    if name == "serve":
        python = str(home / "bin" / "python")
        os.execve(python, [python, "-m", "sglang.launch_server", *arguments], environment)
    if not arguments:
        refuse("command-missing", "with-runtime: no command is given", "with-runtime COMMAND [ARGUMENT]...")
    program = shutil.which(arguments[0], path=environment["PATH"])
    if program is None:
        refuse("command-missing", f"with-runtime: {arguments[0]}: no such command", "name one that is on PATH")
    os.execve(program, arguments, environment)


def refuse(code: str, what: str, fix: str) -> NoReturn:
    """End as every refusal of `sm120` does: one line, its fix, exit code 2."""
    print(f"error: [{code}] {what}\n  fix: {fix}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
