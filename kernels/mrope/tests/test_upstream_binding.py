"""The form that SGLang compiles at run time: built against the pinned wheel's headers, its checks run on the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sm120.kernels._kit import compilers, upstream

FOLDER = Path(__file__).parent.parent
WRAPPER = """
#include "fused_qk_norm_mrope_binding.cuh"
#include <tvm/ffi/function.h>
namespace sglang {
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fused_qk_norm_mrope, (FusedQKNormMropeKernel<bf16_t, 128, 128, true>::run));
}
"""


# one worker compiles for all tests of this file
pytestmark = pytest.mark.xdist_group("mrope_binding")


@pytest.fixture(scope="module")
def binding(tmp_path_factory: pytest.TempPathFactory):
    """The binding as a loaded module; nothing in it runs on a device here."""
    for reason in (compilers.missing_nvcc(), upstream.missing_sglang_headers(), upstream.missing_tvm_ffi()):
        if reason is not None:
            pytest.skip(reason)
    folder = tmp_path_factory.mktemp("binding")
    (folder / "wrapper.cu").write_text(WRAPPER)
    library = upstream.build_jit_module(folder / "wrapper.cu", include=[FOLDER], out=folder / "binding.so")
    import tvm_ffi

    return tvm_ffi.load_module(str(library))


def arguments(**change: object) -> list[object]:
    given = {
        "qkv": torch.zeros(6, 1024).bfloat16(),
        "q_weight": torch.ones(128).bfloat16(),
        "k_weight": torch.ones(128).bfloat16(),
        "positions": torch.zeros(3, 6, dtype=torch.int64),
        "cos_sin_cache": torch.zeros(9, 128),
        "axes_0": 0, "axes_1": 0, "axes_2": 0, "axes_3": 0, "num_heads_q": 4, "num_heads_k": 2, "eps": 1e-6,
    }  # fmt: skip
    return list((given | change).values())


REFUSED = {
    "heads": ({"num_heads_k": 0}, "num_heads_q and num_heads_k must be positive, got 4, 0"),
    "qkv dtype": ({"qkv": torch.zeros(6, 1024).half()}, "qkv has dtype float16"),
    "qkv columns": ({"qkv": torch.zeros(6, 1000).bfloat16()}, "qkv must be [num_tokens, "),
    "qkv column stride": ({"qkv": torch.zeros(6, 2048).bfloat16()[:, ::2]}, "qkv must have unit column stride, got 2"),
    "qkv row stride": ({"qkv": torch.zeros(6, 1028).bfloat16()[:, :1024]}, "row stride is 1028"),
    "weight dtype": ({"q_weight": torch.ones(128)}, "q_weight has dtype float32, it must be that of qkv"),
    "weight shape": (
        {"k_weight": torch.ones(64).bfloat16()},
        "k_weight must be a contiguous, 16-byte aligned [head_dim]",
    ),
    "two rows": ({"positions": torch.zeros(2, 6).long()}, "positions must be [num_tokens] or [3, num_tokens]"),
    "flattened rows": ({"positions": torch.zeros(18).long()}, "positions must be [num_tokens] or [3, num_tokens]"),
    "position stride": (
        {"positions": torch.zeros(3, 12).long()[:, ::2]},
        "positions must have unit column stride, got 2",
    ),
    "position dtype": ({"positions": torch.zeros(3, 6)}, "positions must be int32 or int64, got float32"),
    "cache dtype": ({"cos_sin_cache": torch.zeros(9, 128).half()}, "cos_sin_cache must be float32 or of qkv's dtype"),
    "cache width": ({"cos_sin_cache": torch.zeros(9, 64)}, "cos_sin_cache must be a contiguous, 16-byte aligned"),
    "cache without rows": ({"cos_sin_cache": torch.zeros(0, 128)}, "cos_sin_cache has no rows, num_tokens = 6"),
    "host memory": ({}, "qkv must be a CUDA tensor"),
}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_argument_is_refused_before_any_launch(binding, change: dict[str, object], says: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(says)):
        binding.fused_qk_norm_mrope(*arguments(**change))


@pytest.mark.parametrize(
    "positions",
    [
        torch.zeros(6).int(),
        torch.zeros(6).long().expand(3, -1),
        torch.zeros(3, 50).long()[:, :6],
        torch.zeros(3, 6).int(),
    ],
    ids=["one_axis", "expanded", "buffer_slice", "int32"],
)
def test_only_the_device_is_missing(binding, positions: torch.Tensor) -> None:
    """What the model hands over passes every check but the last."""
    with pytest.raises(RuntimeError, match="qkv must be a CUDA tensor"):
        binding.fused_qk_norm_mrope(*arguments(positions=positions))


def test_no_tokens_need_no_rows_of_the_cache(binding) -> None:
    empty = {"qkv": torch.zeros(0, 1024).bfloat16(), "positions": torch.zeros(3, 0).long()}
    with pytest.raises(RuntimeError, match="qkv must be a CUDA tensor"):
        binding.fused_qk_norm_mrope(*arguments(**empty, cos_sin_cache=torch.zeros(0, 128)))


@pytest.mark.parametrize(("head_dim", "rotary_dim", "neox"), [(256, 64, "true"), (64, 40, "false")], ids=str)
def test_other_shapes_compile_without_spills(tmp_path: Path, head_dim: int, rotary_dim: int, neox: str) -> None:
    for reason in (compilers.missing_nvcc(), upstream.missing_sglang_headers(), upstream.missing_tvm_ffi()):
        if reason is not None:
            pytest.skip(reason)
    from sm120.kernels._kit import machine_code

    source = tmp_path / "other.cu"
    source.write_text(WRAPPER.replace("128, 128, true", f"{head_dim}, {rotary_dim}, {neox}"))
    ffi = Path(__import__("tvm_ffi").__file__).parent
    root = upstream.package_root("sglang") / "kernels/jit/include"
    cubin = compilers.nvcc(
        source, include=[FOLDER, root, ffi / "include", ffi / "3rdparty/dlpack/include"],
        flags=["-std=c++20", "--expt-relaxed-constexpr", "-DSGL_CUDA_ARCH=1200"],
    )  # fmt: skip
    kernels = machine_code.inspect(cubin)
    assert len(kernels) == 4 and not any(kernel.spills for kernel in kernels.values())
