"""The shipped kernels on the CPU against the reference, under three lane schedules, and wrong twins of them."""

from __future__ import annotations

import random

import pytest
import torch
from xqa_mask_cases import CASES, Case
from xqa_mask_host_build import HostBuild

from sm120.kernels._lib import poison, value_coded
from sm120.kernels._lib.host_library import Mutation
from sm120.kernels.xqa_mask import op, reference


def packed(case: Case) -> torch.Tensor:
    """pack_mask into a guarded, poisoned output."""
    arguments = case.arguments()
    arguments.pop("total_q", None)
    with poison.guarded(case.expected().shape, torch.uint16) as out:
        result = op.pack_mask(case.kind, case.q_len, out=out, **arguments)
        assert result is out
    return out


def check(case: Case) -> None:
    wrong = (packed(case).to(torch.int32) != case.expected().to(torch.int32)).nonzero()
    assert not len(wrong), f"{case}: {len(wrong)} words differ, first at {wrong[0].tolist()}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_word_is_the_reference_s(case: Case, host) -> None:
    check(case)


def test_every_draft_length_up_to_128(host) -> None:
    for q_len in range(1, 129):
        check(Case("causal", q_len, (q_len, q_len)))


def test_random_ragged_batches(host) -> None:
    draw = random.Random(7)
    for _ in range(40):
        q_len = draw.randrange(1, 129)
        lengths = tuple(draw.choice([0, 1, q_len, draw.randrange(q_len + 1)]) for _ in range(draw.randrange(9)))
        kind = draw.choice(["causal", "full", "tree"])
        check(Case(kind, q_len, lengths, ragged=True, by_matrix=kind == "tree" and draw.random() < 0.5))


def test_rows_past_the_last_request_are_zero(host) -> None:
    offsets = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    out = poison.unwritten((11, 2), torch.uint16)
    op.pack_mask("causal", 8, cu_seqlens=offsets, out=out)
    assert out[:, 0].tolist() == [1, 3, 7, 1, 3, 0, 0, 0, 0, 0, 0] and not out[:, 1].any()


def test_unchecked_values_never_leave_the_batch(host) -> None:
    """What a device does with lengths and parents that nobody looked at: the sanitizer run sees any stray access."""
    out = poison.unwritten((2, 4, 2), torch.uint16)
    parents = torch.tensor([[0, 5, 1, 2], [-7, 0, 10**9, -(2**31)]], dtype=torch.int32)
    op.pack_mask("tree", 4, batch=2, parents=parents, out=out, check_values=False)
    assert out[0, :, 0].tolist() == [1, 2, 6, 14] and out[1, :, 0].tolist() == [1, 3, 4, 8]
    for offsets in ([5, 2, 99], [-4, 2, 6], [0, 40, 40], [9, 9, 9], [6, 3, 0]):
        out = poison.unwritten((6, 2), torch.uint16)
        for extra in ({}, {"parents": torch.arange(-1, 5, dtype=torch.int32)}, {"ancestors": torch.ones(6, 4).bool()}):
            kind = "tree" if extra else "causal"
            cu_seqlens = torch.tensor(offsets, dtype=torch.int32)
            op.pack_mask(kind, 4, cu_seqlens=cu_seqlens, out=out, check_values=False, **extra)
            assert int(out.to(torch.int32).max()) < 16


@pytest.mark.parametrize("kind", ["causal", "full", "tree"])
def test_what_is_attended_is_what_was_meant(kind: str, host) -> None:
    """Through the reference attention, which reads the mask as XQA does: by flat row."""
    case = Case(kind, 7, (7, 3, 1), ragged=True)
    prefix_len = 5
    mask = packed(case)
    for request, table in enumerate(case.tables()):
        begin, end = case.offsets[request], case.offsets[request + 1]
        values = value_coded.unit_values(prefix_len, end - begin)
        zeros = torch.zeros(1, values.shape[0], 1, 1, dtype=torch.float64)
        q = torch.zeros(end - begin, 1, 1, dtype=torch.float64)
        rows = reference.attention(q, zeros, values[None, :, None], mask[begin:end], [0, end - begin], 7, 1.0)
        for row, seen in zip(rows[:, 0], table, strict=True):
            assert value_coded.attended(prefix_len, row) == [j for j, visible in enumerate(seen) if visible]


PAIR = Case("causal", 8, (8, 8))
WIDE_PAIR = Case("causal", 33, (33, 33))
FIRST_BIT = "  const int first_bit = static_cast<int>(slot % words) * kWordBits;"
FIRST_BLOCK_ONLY = "  if (blockIdx.x > 0) return;\n"  # what a launch of one block would do

WRONG = {  # name: (text, what it becomes, a case that shows it; None where the source's own compile-time checks do)
    "one-draft-short": (": row.index + 1;", ": row.index;", PAIR),
    "full-for-causal": (": full ? row.length", ": true ? row.length", PAIR),
    "causal-for-full": (": full ? row.length", ": false ? row.length", Case("full", 8, (8, 8))),
    "rows-padded-to-16": ("kWordBits = 32", "kWordBits = 16", None),
    "shift-by-32": ("count >= kWordBits ? 0xffffffffu", "count > 32 ? 0xffffffffu", None),
    "width-of-another-block": ("row.index >= q_len ? 0", "row.index >= q_len - 1 ? 0", PAIR),
    "row-of-the-wrong-request": ("const int64_t request = row / q_len;", "const int64_t request = row / 8;", WIDE_PAIR),
    "high-words-lost": (FIRST_BIT, "  const int first_bit = 0;", WIDE_PAIR),
    "later-blocks-lost": (FIRST_BIT, FIRST_BLOCK_ONLY + FIRST_BIT, Case("causal", 33, (33,) * 5)),
    "empty-request-owns-rows": (
        "cu_seqlens[middle + 1] <= row",
        "cu_seqlens[middle + 1] < row",
        Case("causal", 8, (3, 0, 5), ragged=True),
    ),
    "tree-without-self": (
        "  while (token >= 0) {",
        "  if (token >= 0) token = parents[row.first + token];\n  while (token >= 0) {",
        Case("tree", 8, (8, 8)),
    ),
    "tree-parent-only": (
        "token = parent < token ? parent : -1;",
        "token = parent < row.index && token == row.index ? parent : -1;",
        Case("tree", 33, (33, 33)),
    ),
    "matrix-past-length": (
        "draft < row.length && ",
        "draft < q_len && ",
        Case("tree", 8, (3, 8), ragged=True, by_matrix=True),
    ),
    "matrix-high-words-lost": (
        "static_cast<int>(slot % words) * kWordBits + lane",
        "lane",
        Case("tree", 33, (33, 33), by_matrix=True),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, becomes, case = WRONG[name]
    mutation = Mutation(name, "xqa_mask.cuh", text, becomes)
    if case is None:
        with pytest.raises(RuntimeError, match=r"static assertion"):
            HostBuild(mutation)
        return
    wrong = HostBuild(mutation)
    monkeypatch.setattr(op, "_host", lambda: wrong)
    with pytest.raises(AssertionError, match=r"words differ|bytes written"):
        check(case)
