"""The shipped entry by the oracle of the CPU tests: on a device through SGLang's JIT, elsewhere on the simulated one."""

from __future__ import annotations

import types

import pytest
import torch
from mrope_cpu_build import ENTRY, KERNEL, Case, library, pack, variant_names
from mrope_oracle import DTYPES, YARN, assert_right, variants_of

from sm120.kernels._kit import shipped_entry

pytestmark = pytest.mark.gpu
PARTIAL = "mrope_bf16_f32_d64_r32_a3_neox"
FULL = "mrope_bf16_f32_d128_r128_a3_neox"


@pytest.fixture
def shipped(request: pytest.FixtureRequest):
    """Inside SGLang: sglang.kernels.ops.attention.fused_qk_norm_mrope."""
    request.getfixturevalue("_device")
    return shipped_entry.load(KERNEL, ENTRY)


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: f"{row['activations']}-{row['table']}")
@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_dtype_table(row: dict[str, object], position_dtype: torch.dtype, shipped) -> None:
    for name in variants_of(row, variant_names(library())):
        assert_right(Case(name, position_dtype=position_dtype, yarn=YARN), shipped.fused_qk_norm_mrope, "cuda")


@pytest.mark.parametrize("tokens", [1, 63, 65])
@pytest.mark.parametrize("name", [PARTIAL, FULL])
def test_token_counts(name: str, tokens: int, shipped) -> None:
    assert_right(Case(name, tokens=tokens), shipped.fused_qk_norm_mrope, "cuda")


@pytest.mark.parametrize("name", [PARTIAL, FULL])
def test_the_temporal_row_for_every_pair_is_rejected(name: str, shipped) -> None:
    case = Case(name)
    with pytest.raises(AssertionError, match="further from the reference"):
        assert_right(case, shipped.fused_qk_norm_mrope, "cuda", owners=[0] * len(case.owners))


def test_the_axis_map_is_packed_as_the_kernel_takes_it(shipped) -> None:
    for pairs in (8, 32, 33, 64, 128):
        owners = torch.tensor([(7 * i + i // 3) % 3 for i in range(pairs)])
        assert shipped.pack_axis_map(types.SimpleNamespace(axis_map=owners.cuda())) == pack(owners.tolist())


def test_a_captured_graph_follows_the_positions(shipped) -> None:
    case = Case(FULL)
    case.table = case.table_of(600)
    tensors = [tensor.cuda() for tensor in case.tensors()]
    shipped.fused_qk_norm_mrope(*tensors, *case.arguments())  # loads the module outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shipped.fused_qk_norm_mrope(*tensors, *case.arguments())
    for seed in (0, 1):
        moved = Case(FULL, positions=torch.randint(0, 600, (3, 5), generator=torch.Generator().manual_seed(seed)))
        moved.table = case.table
        tensors[0].copy_(case.qkv)
        tensors[3].copy_(moved.positions)
        graph.replay()
        want = assert_right(moved, shipped.fused_qk_norm_mrope, "cuda")
        assert torch.equal(tensors[0][:, : case.width].cpu(), want)
