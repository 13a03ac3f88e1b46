"""FlashInfer's own XQA kernel at the geometry its tests leave out, compiled from the wheel for sm_120a.

head_dim 256, 6 query heads a KV head, pages of 64, FP8 KV, 8 draft tokens: what a 27B-class hybrid model verifies with.
"""

from __future__ import annotations

import pytest

from sm120.kernels._kit import compilers, machine_code, occupancy, upstream
from sm120.kernels._ptx.flashinfer_xqa import FLAGS


@pytest.fixture(scope="module")
def xqa(tmp_path_factory: pytest.TempPathFactory) -> dict[str, machine_code.KernelCode]:
    """The kernels of mha.cu. Its shared memory is dynamic, so the size it asks for is checked while compiling."""
    if compilers.missing_nvcc() is not None:
        pytest.skip(str(compilers.missing_nvcc()))
    root = upstream.package_root("flashinfer")
    if root is None:
        pytest.skip("no flashinfer package, and SM120_FLASHINFER does not name an unpacked wheel")
    source = tmp_path_factory.mktemp("xqa") / "mha_sm120.cu"
    limit = occupancy.SHARED_BYTES_PER_BLOCK
    source.write_text(f'#include "xqa/mha.cu"\nstatic_assert(smemSize <= {limit}, "a block does not fit an SM120");\n')
    flags = [f"-D{name}={value}" for name, value in FLAGS.items()]
    flags += ["--expt-relaxed-constexpr", "-DFLASHINFER_ENABLE_BF16", "-DFLASHINFER_ENABLE_FP8_E4M3"]
    return machine_code.inspect(
        compilers.nvcc(source, include=[root / "data" / "include", root / "data" / "csrc"], flags=flags, timeout=900)
    )


@pytest.mark.slow
def test_it_compiles_and_its_blocks_fit_an_sm120(xqa) -> None:
    kernels = {name: code for name, code in xqa.items() if "kernel_mha" in name}
    assert kernels, sorted(xqa)
    for code in kernels.values():
        assert code.registers <= 255
        assert code.histogram.get("tensor", 0) > 0
        assert code.spills == 0, f"{code.name}: {code.spills} local memory instructions"
