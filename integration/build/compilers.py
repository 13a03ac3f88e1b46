"""Which compiler each JIT of a runtime will use, and what it needs beside it: what `doctor` and `serve` show."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sm120.integration.build.launcher import RELEASE, Toolkit, choose_toolkit
from sm120.integration.common.tool_output import tool_lines

TARGET = "sm_120f"  # what FlashInfer and SGLang ask nvcc 12.9 or newer for on capability 12.0; Triton asks for sm_120a


class Need(NamedTuple):
    """Something that a first start compiles with: what was found, whether it will do, and what to do if not."""

    name: str
    ok: bool
    found: str
    need: str
    fix: str = ""


def compile_needs(environment: Mapping[str, str], layer: Path | None) -> list[Need]:
    """What the JITs of FlashInfer, SGLang and tvm-ffi will compile with in `environment`, started by `bin/serve`.

    `layer` is the runtime's dependency layer; None where no runtime is installed.
    """
    chosen, passed = choose_toolkit(environment, layer)
    path = os.pathsep.join(filter(None, [str(layer / "bin") if layer else "", environment.get("PATH", "")]))
    return [_nvcc(chosen, passed), *_host(environment, path), _ninja(path), _python_headers()]


def _nvcc(chosen: Toolkit | None, passed: Toolkit | None) -> Need:
    name, need = "CUDA compiler", f"nvcc and headers of CUDA {RELEASE}"
    fix = "make runtime RUNTIME=cuda brings a toolkit; CUDA_HOME names another"
    if chosen is None:
        return Need(name, False, "no nvcc", need, fix)
    if chosen.wrong:
        return Need(name, False, f"{chosen.home}: {'; '.join(chosen.wrong)}", need, fix)
    found = f"nvcc {chosen.compiler} in {chosen.home}, for FlashInfer, SGLang and tvm-ffi: {TARGET}"
    if passed is not None:
        found += f" (not {passed.home}: {passed.wrong[0]})"
    return Need(name, True, found, need)


def _host(environment: Mapping[str, str], path: str) -> list[Need]:
    """CXX compiles and links; under nvcc FlashInfer takes CC where it is set, SGLang NVCC_CCBIN or CXX."""
    fix = "install g++, or name a C++ compiler in CXX"
    rows = []
    cxx = environment.get("CXX") or "c++"
    # CXX may be the name of a program with a space in it, or a launcher with its compiler.
    words = [cxx] if shutil.which(cxx, path=path) else cxx.split()
    program = shutil.which(words[0], path=path) if words else None
    said = tool_lines([program, *words[1:], "--version"]) if program else []
    version = next(iter(said), None)
    rows.append(
        Need("host compiler", bool(version), version or f"{cxx}: none", "a C++20 compiler", "" if version else fix)
    )
    under = {"FlashInfer": environment.get("CC") or "gcc", "SGLang": environment.get("NVCC_CCBIN") or cxx}
    missing = [
        f"{jit}: {word}" for jit, word in under.items() if not _is_compiler(word, path)
    ]  # fmt: skip
    found = (
        ", ".join(missing) + ": not there" if missing else ", ".join(f"{word} for {jit}" for jit, word in under.items())
    )
    fix = "install gcc, or name a compiler in CC and NVCC_CCBIN" if missing else ""
    return [*rows, Need("under nvcc", not missing, found, "a host compiler", fix)]


def _is_compiler(word: str, path: str) -> bool:
    if shutil.which(word, path=path) or Path(word).is_dir():
        return True
    words = word.split()
    return bool(words) and bool(shutil.which(words[0], path=path))


def _ninja(path: str) -> Need:
    program = shutil.which("ninja", path=path)
    version = next(iter(tool_lines([program, "--version"])), None) if program else None
    fix = "" if version else "make runtime RUNTIME=cuda brings it"
    return Need("ninja", bool(version), f"{version} ({program})" if version else "none", "ninja", fix)


def _python_headers() -> Need:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    fix = "" if header.is_file() else "install Python's development headers (python3-dev)"
    return Need("Python headers", header.is_file(), str(header.parent), "Python.h", fix)
