"""Drafted tokens must stay inside the attended set when an MTP iteration reuses one QSA selection."""

import pytest
import torch
from sglang.srt.layers.attention.qsa.kernel import qsa_sparse_attention_reference, torch_expand_qsa_block_indices
from sglang.srt.layers.attention.qwen_sparse_attn_backend import QSAMTPSharedSparseIndices

RATIO = 4
BUDGET = 2048
STEPS = 4
# Every phase of the anchor inside its compression group, on both sides of the budget.
ANCHORS = [0, 1, 2, 3, 4, 97, 98, 99, 100, 2046, 2047, 2048, 2049, 2050, 2051, 3000, 3001, 3002, 3003, 8191]


def selection(anchor: int) -> torch.Tensor:
    """The draft-extend selection of the query at position `anchor`, as the indexer hands it over."""
    visible = (anchor + 1) // RATIO
    blocks = torch.full((1, BUDGET // RATIO), -1, dtype=torch.int32)
    chosen = torch.arange(visible, dtype=torch.int32)[-(BUDGET // RATIO) :]
    blocks[0, : chosen.numel()] = chosen
    return torch_expand_qsa_block_indices(blocks, torch.tensor([anchor]), torch.tensor([anchor + 1]), RATIO, BUDGET)


def lookup(anchor: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The captured row and the row that draft step `step` (position `anchor + step`) attends."""
    shared = QSAMTPSharedSparseIndices(
        layer_ids=[7], num_requests=3, token_topk=BUDGET + RATIO - 1, tail_width=STEPS + 1, device="cpu"
    )
    frozen = selection(anchor)
    shared.capture(frozen, torch.tensor([2]), torch.tensor([anchor + 1]), 7)
    return frozen[0], shared.lookup(torch.tensor([2]), torch.tensor([anchor + step]), 7)[0]


@pytest.mark.parametrize("anchor", ANCHORS)
def test_valid_prefix_is_the_whole_selection(anchor):
    for step in range(1, STEPS + 1):
        frozen, row = lookup(anchor, step)
        expected = set(frozen[frozen >= 0].tolist()) | set(range(anchor + 1, anchor + step + 1))
        valid = row[row >= 0]
        assert set(valid.tolist()) == expected
        # What the packed decode reads: the first `valid_count` columns.
        assert set(row[: valid.numel()].tolist()) == expected, f"anchor {anchor}, step {step}"


def test_each_request_keeps_its_own_tail():
    shared = QSAMTPSharedSparseIndices(
        layer_ids=[3, 7], num_requests=4, token_topk=BUDGET + RATIO - 1, tail_width=STEPS + 1, device="cpu"
    )
    anchors = [5, 2050, 99]
    rows = torch.tensor([4, 1, 3])
    shared.capture(torch.cat([selection(a) for a in anchors]), rows, torch.tensor(anchors) + 1, 7)
    # A second capture on the same rows replaces the first one whole.
    anchors = [2100, 7, 98]
    shared.capture(torch.cat([selection(a) for a in anchors]), rows, torch.tensor(anchors) + 1, 7)
    out = shared.lookup(rows, torch.tensor(anchors) + 2, 7)
    for row, anchor in zip(out, anchors, strict=True):
        frozen = selection(anchor)[0]
        expected = set(frozen[frozen >= 0].tolist()) | {anchor + 1, anchor + 2}
        assert set(row[: int((row >= 0).sum())].tolist()) == expected


def test_never_captured_row_attends_only_the_first_token():
    shared = QSAMTPSharedSparseIndices(
        layer_ids=[7], num_requests=3, token_topk=BUDGET + RATIO - 1, tail_width=STEPS + 1, device="cpu"
    )
    row = shared.lookup(torch.tensor([1]), torch.tensor([0]), 7)[0]
    assert set(row[: int((row >= 0).sum())].tolist()) == {0}


def test_drafted_values_reach_the_output():
    """Q = K = 0 and one value per token: the output is the mean over the attended set."""
    anchor, step = 99, 2
    _, row = lookup(anchor, step)
    read = row[: int((row >= 0).sum())]
    keys = torch.zeros(128, 1, 8)
    values = torch.zeros(128, 1, 8)
    values[anchor + 1 :] = 1.0
    got = qsa_sparse_attention_reference(torch.zeros(1, 1, 8), keys, values, read[None], 1.0)
    assert got[0, 0, 0].item() == pytest.approx(step / (anchor + step + 1))
