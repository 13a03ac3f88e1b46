"""Compile a CUDA C++ source for the CPU with the SIMT shim and call it from Python: the shipped file, not a port of it.

A kernel's tests keep a small C++ file beside them that includes the `.cuh` and exports `extern "C" int` functions
(`simt/c_api.h` shows one). `build` compiles it with g++, `HostLibrary.call` runs it under a chosen lane schedule, and a
`Mutation` compiles a deliberately wrong twin of the same source, which the same test has to reject.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120.kernels._kit.compile_cache import compile_once

SCHEDULES = {"forward": 0, "reverse": 1, "random": 2}
SHIM = Path(__file__).parent / "simt" / "host_shim.h"
WARNINGS = ("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror")


class SimtFault(RuntimeError):
    """The kernel broke a rule of the programming model; the message names source line, block, warp and lanes."""


@dataclass(frozen=True)
class Mutation:
    """One deliberate fault: in `file`, replace the only occurrence of `old` by `new`. `name` is the test id."""

    name: str
    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> None:
        """Edit `folder/file` in place. Raises ValueError when `old` does not occur exactly once."""
        path = folder / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            count = text.count(self.old)
            raise ValueError(f"mutation {self.name}: {self.old!r} occurs {count} times in {self.file}, needs 1")
        path.write_text(text.replace(self.old, self.new))


class HostLibrary:
    """A loaded host build; `call` runs one of its functions and turns a fault into SimtFault."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.simt_last_fault.restype = ctypes.c_char_p

    def call(self, function: str, *arguments: object, schedule: str = "forward", seed: int = 0) -> None:
        """Run `function(*arguments)`. Tensors and arrays pass their data pointer, ints a 64-bit int, None a null.

        Raises SimtFault with the shim's message, ValueError for an unknown schedule.
        """
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule: got {schedule!r}, needs one of {sorted(SCHEDULES)}")
        self._library.simt_choose_schedule(SCHEDULES[schedule], ctypes.c_ulonglong(seed))
        if getattr(self._library, function)(*map(_as_ctypes, arguments)) != 0:
            raise SimtFault(self._library.simt_last_fault().decode())


def build(
    source: Path,
    *,
    include: Sequence[Path] = (),
    defines: Mapping[str, str | int] | None = None,
    mutation: Mutation | None = None,
    sanitize: bool | None = None,
) -> HostLibrary:
    """Compile `source` for the CPU and load it; see `compile_library`."""
    return HostLibrary(compile_library(source, include=include, defines=defines, mutation=mutation, sanitize=sanitize))


def compile_library(
    source: Path,
    *,
    include: Sequence[Path] = (),
    defines: Mapping[str, str | int] | None = None,
    mutation: Mutation | None = None,
    sanitize: bool | None = None,
) -> Path:
    """Compile `source` for the CPU; returns a library that lives as long as this process.

    `include` lists the folders whose headers it uses; a mutation edits a copy of the first of them. `sanitize` builds
    with AddressSanitizer and UBSan and needs `sanitizers.environment()`; by default it follows SM120_SANITIZE.
    Raises RuntimeError with the compiler's words when the source does not compile.
    """
    if sanitize is None:
        sanitize = os.environ.get("SM120_SANITIZE") == "1"
    folder = Path(tempfile.mkdtemp(dir=_scratch()))
    include = list(include)
    if mutation is not None:
        twin = folder / "mutated"
        shutil.copytree(include[0], twin, ignore=shutil.ignore_patterns("__pycache__"))
        mutation.apply(twin)
        if source.is_relative_to(include[0]):  # a quoted #include looks beside the including file first
            source = twin / source.relative_to(include[0])
        include[0] = twin
    library = folder / f"{source.stem}.so"
    command = [_compiler(), "-x", "c++", "-std=c++17", "-include", str(SHIM), "-fPIC", "-shared"]
    # a wrong twin may well leave a parameter unused, and has to be rejected for what it computes
    command += WARNINGS if mutation is None else ["-w"]
    # what two libraries of one process must not share: the scheduler, and the symbols of a mutated twin
    command += ["-fvisibility=hidden", "-fno-gnu-unique"]
    # nvcc contracts a*b+c, g++ must not: results then do not depend on the optimisation level
    command += ["-ffp-contract=off"]
    if sanitize:
        command += ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    else:
        command += ["-O2" if mutation is None else "-O0", "-DSIMT_POISON"]
    command += [f"-D{name}={value}" for name, value in (defines or {}).items()]
    command += [f"-I{path}" for path in include] + ["-isystem", str(cuda_include()), str(source)]

    def run(command: list[str]) -> None:
        # the compiler itself must not run under a preloaded sanitizer: it is 20 times slower there
        clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=clean)
        if done.returncode != 0:
            raise RuntimeError(f"{source.name} does not compile for the CPU:\n{done.stderr}")

    compile_once(command, [SHIM.parent, *include, source], library, run, scratch=folder)
    return library


@functools.cache
def cuda_include() -> Path:
    """Folder of NVIDIA's own headers (cuda_bf16.h, cuda_fp8.h, vector_types.h); they compile as plain C++."""
    candidates = [root / "include" for root in _toolkits()]
    try:
        import triton

        candidates.append(Path(triton.__file__).parent / "backends" / "nvidia" / "include")
    except ImportError:
        pass
    for candidate in candidates:
        # cuda_fp16.h includes nv/target, which Triton's copy of the headers leaves out
        if (candidate / "cuda_bf16.h").exists() and (candidate / "nv" / "target").exists():
            return candidate
    raise RuntimeError("no complete CUDA headers (cuda_bf16.h, nv/target): neither with nvcc on PATH nor in Triton")


def _toolkits() -> list[Path]:
    """Where nvcc on PATH says its toolkit is; asked, because the nvcc found first may be a script that calls another."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return []
    done = subprocess.run([nvcc, "--dryrun", "-c", "-x", "cu", "/dev/null"], capture_output=True, text=True, timeout=60)
    return [Path(line.split("TOP=", 1)[1]) for line in done.stderr.splitlines() if line.startswith("#$ TOP=")]


def _compiler() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise RuntimeError("no C++ compiler: set CXX or put g++ on PATH")
    return compiler


@functools.cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sm120-host-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _as_ctypes(argument: object) -> object:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, bool | int):
        return ctypes.c_longlong(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if hasattr(argument, "data_ptr"):
        return ctypes.c_void_p(argument.data_ptr())
    if hasattr(argument, "ctypes"):
        return ctypes.c_void_p(argument.ctypes.data)
    raise TypeError(f"cannot pass a {type(argument).__name__} to a host kernel")
