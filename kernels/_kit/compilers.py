"""Compile shipped kernel sources for sm_120a on a machine without a GPU: nvcc, NVRTC or Triton, each to a cubin."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120.kernels._kit.compile_cache import ROOT, compile_once
from sm120.kernels._kit.host_library import cuda_include
from sm120.kernels._lib import capability


@dataclass(frozen=True)
class Cubin:
    """Machine code of one translation unit, and what made it."""

    data: bytes
    toolchain: str
    arch: str
    dynamic_shared_bytes: int = 0


class CompileError(RuntimeError):
    """A source did not compile for the device; the message ends with the compiler's own words."""


def nvcc(
    source: Path,
    *,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    pair: tuple[int, int] = (12, 0),
    timeout: float = 300,
) -> Cubin:
    """Compile a `.cu` or `.cuh` with the nvcc on PATH (`missing_nvcc()` says why there is none)."""
    reason = missing_nvcc()
    if reason is not None:
        raise CompileError(reason)
    name = capability.arch(pair)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "code.cubin"
        command = ["nvcc", "-x", "cu", "-O3", "-std=c++17", "-gencode"]
        command += [f"arch={name.replace('sm', 'compute')},code={name}", "-cubin"]
        command += [*(f"-I{path}" for path in include), *flags, str(source)]

        def run(command: list[str]) -> None:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
            if done.returncode != 0:
                raise CompileError(f"{source.name} does not compile for {name}:\n{done.stdout}{done.stderr}")

        beside = source.resolve().parent
        lasting = beside.is_relative_to(ROOT) or "site-packages" in beside.parts
        reads = [beside] if lasting else [path for path in beside.iterdir() if path.is_file()]
        reads += [*include, *(Path(flag[2:]) for flag in flags if flag.startswith("-I"))]
        compile_once(command, reads, out, run, scratch=None if lasting else source.parent)
        return Cubin(out.read_bytes(), f"nvcc {_nvcc_version()}", name)


@functools.cache
def missing_nvcc() -> str | None:
    """None when nvcc can be run, else the reason for people."""
    return None if shutil.which("nvcc") else "nvcc is not on PATH"


def nvrtc(source: Path, *, flags: Sequence[str] = (), pair: tuple[int, int] = (12, 0)) -> Cubin:
    """Compile a self-contained source with NVRTC (`missing_nvrtc()` says why there is none)."""
    reason = missing_nvrtc()
    if reason is not None:
        raise CompileError(reason)
    from cuda.bindings import nvrtc as rtc

    name = capability.arch(pair)
    options = [f"--gpu-architecture={name}", "--std=c++17", f"--include-path={cuda_include()}", *flags]
    headers, names = list(_NVRTC_HEADERS.values()), list(_NVRTC_HEADERS)
    _, program = rtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), len(names), headers, names)
    status = rtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    if status != rtc.nvrtcResult.NVRTC_SUCCESS:
        log = _filled_by(rtc.nvrtcGetProgramLog, program, rtc.nvrtcGetProgramLogSize(program)[1])
        raise CompileError(f"{source.name} does not compile for {name}:\n{log.rstrip(bytes(1)).decode()}")
    _, major, minor = rtc.nvrtcVersion()
    data = _filled_by(rtc.nvrtcGetCUBIN, program, rtc.nvrtcGetCUBINSize(program)[1])
    return Cubin(data, f"nvrtc {major}.{minor}", name)


def _filled_by(function: Callable[[object, bytes], object], program: object, size: int) -> bytes:
    """What `function` writes into a bytes object, which is how the binding returns data.

    The object must be ours alone. Python shares every one-byte bytes object: `b" " * 1` is the literal b" " of the whole
    process, and an empty log, one NUL, would change it there. Two bytes or more are always new.
    """
    buffer = bytes(size + 2)
    function(program, buffer)
    return buffer[:size]


# NVRTC ships no C++ standard library; this is what our kernels take from one.
_NVRTC_HEADERS = {
    b"cstdint": b"""#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long uint64_t; typedef unsigned long uintptr_t;
""",
}


@functools.cache
def missing_nvrtc() -> str | None:
    """None when NVRTC can be loaded, else the reason for people."""
    try:
        from cuda.bindings import nvrtc as rtc

        rtc.nvrtcVersion()
    except Exception as error:  # the binding has a class of its own for a library it cannot find
        return f"NVRTC cannot be loaded ({type(error).__name__}: {str(error).splitlines()[0]})"
    return None


def triton(
    module: str,
    function: str,
    *,
    signature: Mapping[str, str],
    constexprs: Mapping[str, object] | None = None,
    aligned: Sequence[str] = (),
    num_warps: int = 4,
    num_stages: int = 2,
    pair: tuple[int, int] = (12, 0),
    timeout: float = 300,
) -> Cubin:
    """Compile `module.function`, a @triton.jit kernel, in a process of its own (it must not be interpreted there).

    signature   a Triton type ("*bf16", "*fp8e4nv", "i32", ...) for every argument that is not in `constexprs`.
    aligned     arguments whose value is a multiple of 16; without this no load is vectorised.
    """
    job = {
        "module": module,
        "function": function,
        "signature": dict(signature),
        "constexprs": dict(constexprs or {}),
        "aligned": list(aligned),
        "options": {"num_warps": num_warps, "num_stages": num_stages},
        "capability": pair[0] * 10 + pair[1],
    }
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"TRITON_CACHE_DIR": folder, "TRITON_DEFAULT_FP_FUSION": "1"}
        out = Path(folder) / "code.cubin"
        done = subprocess.run(
            [sys.executable, "-m", "sm120.kernels._kit.triton_worker", str(out)],
            input=json.dumps(job),
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode != 0:
            raise CompileError(f"{module}.{function} does not compile:\n{done.stderr}")
        report = json.loads(done.stdout.splitlines()[-1])
        return Cubin(out.read_bytes(), report["toolchain"], capability.arch(pair), report["shared"])


def _nvcc_version() -> str:
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found[1] if found else "unknown"
