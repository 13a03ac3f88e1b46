"""PTX of a CUDA C++ source for sm_120a, made by the nvcc on PATH and kept by content."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sm120.kernels._kit.compile_cache import ROOT, compile_once
from sm120.kernels._kit.compilers import CompileError, missing_nvcc


def nvcc_ptx(source: Path, *, include: Sequence[Path] = (), flags: Sequence[str] = (), timeout: float = 600) -> str:
    """The PTX text. Raises CompileError with the compiler's words, or where there is no nvcc."""
    reason = missing_nvcc()
    if reason is not None:
        raise CompileError(reason)
    command = ["nvcc", "-x", "cu", "-ptx", "-O3", "-std=c++17", "-w"]
    command += ["-gencode", "arch=compute_120a,code=compute_120a"]
    command += [*(f"-I{path}" for path in include), *flags, str(source)]

    def run(words: list[str]) -> None:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise CompileError(f"{source.name} does not compile for sm_120a:\n{done.stdout}{done.stderr}")

    beside = source.resolve().parent
    lasting = beside.is_relative_to(ROOT) or "site-packages" in beside.parts
    reads = [beside] if lasting else [path for path in beside.iterdir() if path.is_file()]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "code.ptx"
        compile_once(command, [*reads, *include], out, run, scratch=None if lasting else source.parent)
        return out.read_text()
