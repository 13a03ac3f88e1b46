"""The exact block top-k, in the strict interpreter, against the float64 reference: index for index."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sm120.kernels._kit import mutated_module
from sm120.kernels.qsa import op, triton_block_topk
from sm120.kernels.qsa import reference as ref

pytestmark = pytest.mark.interpreter


def check(scores: torch.Tensor, starts: list[int], lengths: list[int], topk: int = 512) -> None:
    """Every row equals the reference's selection (smallest index first among ties), ascending, then -1."""
    got = triton_block_topk.block_topk(
        scores, torch.tensor(starts, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32), topk
    )
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        chosen = sorted(ref.select_blocks(scores[row, start : start + length].double(), length, topk))
        expected = torch.tensor(chosen + [-1] * (topk - len(chosen)), dtype=torch.int32)
        assert torch.equal(got[row], expected), f"row {row}: {(got[row] != expected).sum()} of {topk} differ"


def random_scores(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [0, 1, 3, 511, 512, 513, 2051, 4096, 4097, 8192])
def test_random_rows(length):
    check(random_scores(1, max(length, 1)), [0], [length])


def test_short_rows_never_read_their_scores():
    check(torch.full((2, 600), float("nan")), [0, 50], [512, 7])


def test_row_starts_and_poisoned_neighbours():
    scores = torch.full((2, 3000), float("inf"))
    scores[0, 100:2100], scores[1, 7:1000] = random_scores(1, 2000)[0], random_scores(1, 993, seed=1)[0]
    check(scores, [100, 7], [2000, 993])


@pytest.mark.parametrize("length", [513, 4096, 5000, 16_384])
def test_all_equal_scores(length):
    check(torch.full((1, length), 0.5), [0], [length])


def test_more_ties_than_any_staging_buffer():
    scores = torch.full((1, 20_000), 1.0)
    scores[0, torch.arange(100) * 199 + 7] = 1.0 + 2.0**-22
    scores[0, :50] = -1.0
    check(scores, [0], [20_000])


def test_rows_of_half_a_million_tokens_and_beyond():
    scores = torch.randint(0, 40, (1, 140_000), generator=torch.Generator().manual_seed(2)).float()
    check(scores[:, :131_072].contiguous(), [0], [131_072])
    check(scores, [0], [140_000])


def test_signs_zeros_infinities_and_subnormals():
    special = [float("inf"), -float("inf"), 0.0, 1e-42, -1e-42, 3.4e38, -3.4e38, 1.0, -1.0]
    scores = torch.tensor(special).repeat(100)[None]
    check(scores, [0], [900], topk=250)
    check(scores, [0], [900], topk=850)


@pytest.mark.parametrize("topk", [1, 2, 100, 512, 2048])
def test_topk_widths(topk):
    check(random_scores(1, 2500).round(decimals=1), [0], [2500], topk=topk)


def test_two_runs_and_a_permuted_batch_agree():
    scores = random_scores(3, 900).round(decimals=1)
    starts, lengths = torch.zeros(3, dtype=torch.int32), torch.full((3,), 900, dtype=torch.int32)
    first = op.block_topk(scores, starts, lengths, 64)
    assert torch.equal(first, op.block_topk(scores, starts, lengths, 64))
    order = torch.tensor([2, 0, 1])
    assert torch.equal(first[order], op.block_topk(scores[order], starts, lengths, 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(scores=torch.zeros(2, 9, dtype=torch.bfloat16)), "scores: dtype"),
        (dict(scores=torch.zeros(9, 2).T), "scores: stride"),
        (dict(row_starts=torch.zeros(2, dtype=torch.int64)), "row_starts: dtype"),
        (dict(lengths=torch.zeros(3, dtype=torch.int32)), "lengths: shape"),
        (dict(lengths=torch.tensor([3, 10], dtype=torch.int32)), r"lengths: row 1 is \[0, \+10\)"),
        (dict(topk=0), "topk: got 0"),
    ],
)
def test_bad_inputs_are_named(change, message):
    arguments = dict(
        scores=torch.zeros(2, 9),
        row_starts=torch.zeros(2, dtype=torch.int32),
        lengths=torch.full((2,), 9, dtype=torch.int32),
        topk=4,
    )
    with pytest.raises(ValueError, match=message):
        op.block_topk(**arguments | change)


@pytest.mark.parametrize(
    ("old", "new", "test"),
    [
        ("bits ^ 0x7FFFFFFF", "bits", test_signs_zeros_infinities_and_subnormals),
        ("tie_rank <= wanted", "tie_rank <= wanted + 1", test_more_ties_than_any_staging_buffer),
        ("ties + tl.cumsum", "tl.cumsum", test_more_ties_than_any_staging_buffer),
        ("(key > prefix)", "(key >= prefix)", lambda: test_topk_widths(100)),
        ("scores + row * stride_row + tl.load(row_starts + row)", "scores + row * stride_row",
         test_row_starts_and_poisoned_neighbours),
        ("member & ((key >> (shift + 8)) == prefix)", "member", test_more_ties_than_any_staging_buffer),
    ],
)  # fmt: skip
def test_a_wrong_kernel_is_rejected(monkeypatch, tmp_path, old, new, test):
    # A wrong kernel may collect too much: leave it room to do so inside the test's own memory.
    room = ("torch.empty((rows, topk)", "torch.empty((rows + 40, topk)")
    wrong = mutated_module.load(Path(triton_block_topk.__file__), tmp_path, room, (old, new))
    monkeypatch.setattr(triton_block_topk, "block_topk", wrong.block_topk)
    with pytest.raises(AssertionError):
        test()
