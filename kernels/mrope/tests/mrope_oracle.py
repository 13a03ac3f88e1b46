"""What a test of the kernel runs and compares: one call in guarded memory, on the CPU build or through the entry."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import torch
from mrope_cpu_build import KERNEL, Case, pack, rounding

from sm120.kernels._kit.poison import guarded
from sm120.kernels.mrope import reference

DTYPES = tomllib.loads((KERNEL / "kernel.toml").read_text())["dtypes"]
YARN = reference.Yarn(4.0, 3.0, 19.0, 1.1386294)


def variants_of(row: dict[str, object], compiled: list[str]) -> list[str]:
    """The compiled variants of a row of the dtype table; asserts that both axis counts and both pairings are there."""
    assert row["relative_error"] == rounding({"bf16": torch.bfloat16, "fp16": torch.float16}[row["activations"]])
    names = [name for name in compiled if name.startswith(f"mrope_{row['activations']}_{row['table']}_")]
    assert {name.split("_")[5] for name in names} == {"a1", "a3"}, "the row's variants are not all compiled"
    assert any(name.endswith("_neox") for name in names) and any(name.endswith("_gptj") for name in names)
    return names


def assert_right(
    case: Case, fused: Callable[..., None], device: str = "cpu", owners: list[int] | None = None
) -> torch.Tensor:
    """Run one case in guarded memory; assert Q and K to be the reference, rounded once, and V untouched. Returns Q, K.

    `fused` takes the arguments of SGLang's `fused_qk_norm_mrope`; `owners` replaces the case's axis map.
    """
    words, *rest = case.arguments()
    with guarded(case.qkv.shape, case.dtype, device) as qkv:
        qkv.copy_(case.qkv)
        others = [tensor.to(device) for tensor in case.tensors()[1:]]
        fused(qkv, *others, words if owners is None else pack(owners), *rest)
        result = qkv.cpu().clone()
    assert torch.equal(result[:, case.width :], case.qkv[:, case.width :]), "V heads: changed"
    result, expected = result[:, : case.width], case.expected()
    allowed = rounding(case.dtype) * expected.abs() + 1e-5
    worst = ((result.double() - expected).abs() - allowed).max() if case.tokens else -1.0
    assert worst <= 0, f"{case.variant}: {worst:.3g} further from the reference than one rounding explains"
    return result
