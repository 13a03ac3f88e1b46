"""The shipped kernel on the CPU against the reference, under three lane schedules, and wrong twins of it."""

from __future__ import annotations

import random

import pytest
import torch
from xqa_mask_cases import CASES, Case
from xqa_mask_host_build import HostBuild

from sm120.kernels._kit import poison, value_coded
from sm120.kernels._kit.host_library import Mutation
from sm120.kernels.xqa_mask import reference


def packed(case: Case, build: HostBuild) -> torch.Tensor:
    """The kernel's rows, from a guarded, poisoned output."""
    with poison.guarded(case.expected().shape, torch.uint16) as out:
        build.xqa_mask_fill(out, case.offsets(), case.q_len)
    return out


def check(case: Case, build: HostBuild) -> None:
    wrong = (packed(case, build).to(torch.int32) != case.expected().to(torch.int32)).nonzero()
    assert not len(wrong), f"{case}: {len(wrong)} words differ, first at {wrong[0].tolist()}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_word_is_the_reference_s(case: Case, host) -> None:
    check(case, host)


def test_every_draft_length_up_to_128(host) -> None:
    for q_len in range(1, 129):
        check(Case(q_len, (q_len, q_len)), host)


def test_random_batches(host) -> None:
    draw = random.Random(7)
    for _ in range(40):
        q_len = draw.randrange(1, 129)
        lengths = tuple(draw.choice([0, 1, q_len, draw.randrange(q_len + 1)]) for _ in range(draw.randrange(9)))
        check(Case(q_len, lengths), host)


def test_rows_past_the_last_request_are_zero(host) -> None:
    out = poison.unwritten((11, 2), torch.uint16)
    host.xqa_mask_fill(out, torch.tensor([0, 3, 3, 5], dtype=torch.int32), 8)
    assert out[:, 0].tolist() == [1, 3, 7, 1, 3, 0, 0, 0, 0, 0, 0] and not out[:, 1].any()


@pytest.mark.parametrize("offsets", [[5, 2, 99], [-4, 2, 6], [0, 40, 40], [9, 9, 9], [6, 3, 0]], ids=str)
def test_wrong_offsets_never_leave_the_tensors(host, offsets: list[int]) -> None:
    """What a device does with lengths that nobody looked at: the sanitizer run sees any stray access."""
    with poison.guarded((6, 2), torch.uint16) as out:
        host.xqa_mask_fill(out, torch.tensor(offsets, dtype=torch.int32), 4)
    assert int(out.to(torch.int32).max()) < 16


def test_what_is_attended_is_what_was_meant(host) -> None:
    """Through the reference attention, which reads the mask as XQA does: by flat row."""
    case, prefix_len = Case(7, (7, 3, 1)), 5
    mask, offsets = packed(case, host), case.offsets().tolist()
    for request, length in enumerate(case.lengths):
        values = value_coded.unit_values(prefix_len, length)
        zeros = torch.zeros(1, values.shape[0], 1, 1, dtype=torch.float64)
        q = torch.zeros(length, 1, 1, dtype=torch.float64)
        rows = mask[offsets[request] : offsets[request + 1]]
        seen = reference.attention(q, zeros, values[None, :, None], rows, [0, length], 7, 1.0)[:, 0]
        assert [value_coded.attended(prefix_len, row) for row in seen] == [list(range(i + 1)) for i in range(length)]


PAIR, WIDE_PAIR = Case(8, (8, 8)), Case(33, (33, 33))
FIRST_BIT = "  const int first_bit = static_cast<int>(slot % words) * kWordBits;"
FIRST_BLOCK_ONLY = "  if (blockIdx.x > 0) return;\n"  # what a launch of one block would do

WRONG = {  # name: (text, what it becomes, a case that shows it; None where the source's own compile-time checks do)
    "one-draft-short": ("static_cast<int>(index) + 1 : 0", "static_cast<int>(index) : 0", PAIR),
    "full-for-causal": ("index < q_len ? static_cast<int>(index) + 1 : 0", "q_len", PAIR),
    "rows-padded-to-16": ("kWordBits = 32", "kWordBits = 16", None),
    "shift-by-32": ("count >= kWordBits ? 0xffffffffu", "count > 32 ? 0xffffffffu", None),
    "width-of-another-block": ("index < q_len ?", "index < q_len - 1 ?", PAIR),
    "row-of-the-wrong-request": ("return row - cu_seqlens[low];", "return row - cu_seqlens[0];", WIDE_PAIR),
    "high-words-lost": (FIRST_BIT, "  const int first_bit = 0;", WIDE_PAIR),
    "later-blocks-lost": (FIRST_BIT, FIRST_BLOCK_ONLY + FIRST_BIT, Case(33, (33,) * 5)),
    "empty-request-owns-rows": ("cu_seqlens[middle + 1] <= row", "cu_seqlens[middle + 1] < row", Case(8, (3, 0, 5))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_rejected(name: str) -> None:
    text, becomes, case = WRONG[name]
    mutation = Mutation(name, "xqa_mask.cuh", text, becomes)
    if case is None:
        with pytest.raises(RuntimeError, match=r"static assertion"):
            HostBuild(mutation)
        return
    with pytest.raises(AssertionError, match=r"words differ|bytes written"):
        check(case, HostBuild(mutation))
