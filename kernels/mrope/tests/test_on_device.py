"""The dtype table on an SM120 device, by the oracle of the CPU tests. Not run yet on any device."""

from __future__ import annotations

import pytest
import torch
from mrope_cpu_build import Case, library, variant_names
from mrope_oracle import DTYPES, YARN, assert_right, store_for, variants_of

from sm120.kernels.mrope import op

pytestmark = pytest.mark.gpu
PARTIAL = "mrope_bf16_f32_d64_r32_a3_neox_gemma_fp8"
PHASE = "mrope_bf16_phase_d128_r128_a3_neox_plain_none"


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: f"{row['activations']}-{row['table']}-{row['store']}")
@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_dtype_table(row: dict[str, object], position_dtype: torch.dtype) -> None:
    """The names are those of the CPU build; one that the fatbin lacks is a ValueError."""
    for name in variants_of(row, variant_names(library())):
        assert_right(Case(name, position_dtype=position_dtype, yarn=YARN), None)


@pytest.mark.parametrize("tokens", [1, 63, 65])
@pytest.mark.parametrize("name", [PARTIAL, PHASE])
def test_token_counts(name: str, tokens: int) -> None:
    assert_right(Case(name, tokens=tokens), None)


@pytest.mark.parametrize("name", [PARTIAL, PHASE])
def test_the_temporal_row_for_every_pair_is_rejected(name: str) -> None:
    case = Case(name)
    with pytest.raises(AssertionError, match="further from the reference"):
        assert_right(case, None, axis_map=[0] * len(case.owners))


@pytest.mark.parametrize("name", [PARTIAL, PHASE])
def test_in_place_is_the_same_and_leaves_v_alone(name: str) -> None:
    case = Case(name)
    apart = assert_right(case, None)
    qkv, *rest = (tensor.cuda() for tensor in case.tensors())
    assert op.fused_qk_norm_mrope(qkv, *rest, store=store_for(case, device="cuda"), **case.arguments()) is qkv
    assert torch.equal(qkv[:, : case.width].cpu(), apart)
    assert torch.equal(qkv[:, case.width :].cpu(), case.qkv[:, case.width :])


def test_a_captured_graph_follows_the_positions() -> None:
    case = Case(PHASE)
    tensors = [tensor.cuda() for tensor in case.tensors()]
    out = torch.empty((case.tokens, case.width), dtype=case.dtype, device="cuda")
    op.fused_qk_norm_mrope(*tensors, out=out, **case.arguments())  # loads the module outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op.fused_qk_norm_mrope(*tensors, out=out, **case.arguments())
    for seed in (0, 1):
        moved = Case(PHASE, positions=torch.randint(0, 600, (3, 5), generator=torch.Generator().manual_seed(seed)))
        tensors[3].copy_(moved.positions)
        graph.replay()
        assert torch.equal(out.cpu(), assert_right(moved, None))
