"""The patched block top-k compiles for sm_120a, spills nothing and fits its block of 1024 threads."""

from pathlib import Path

import pytest
import sglang

from sm120.kernels._kit import compilers, machine_code

tvm_ffi = pytest.importorskip("tvm_ffi", reason="the JIT kernels' headers come with apache-tvm-ffi, which is missing")
pytestmark = pytest.mark.skipif(compilers.missing_nvcc() is not None, reason=str(compilers.missing_nvcc()))
JIT = Path(sglang.__file__).parent / "kernels" / "jit"


def test_compiles_without_spills(tmp_path):
    source = tmp_path / "fast_topk.cu"
    source.write_text(
        '#include "elementwise/fast_topk.cuh"\n'
        "void* instantiate = reinterpret_cast<void*>(&sglang::FastTopKKernel<512, true>::run);\n"
    )
    include = [JIT / "include", JIT / "csrc", Path(tvm_ffi.__file__).parent / "include"]
    flags = ["-std=c++20", "--expt-relaxed-constexpr", "-DSGL_CUDA_ARCH=1200", "-w"]
    code = machine_code.only(compilers.nvcc(source, include=include, flags=flags))
    assert code.spills == 0 and code.local_bytes == 0
    assert code.registers <= 64, f"{code.registers} registers: 1024 threads a block need at most 64"
