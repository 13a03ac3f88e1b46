"""FlashInfer's real XQA, run as PTX for sm_120a: what it does with our masks, and with the masks that it misreads."""

from __future__ import annotations

import pytest
import torch

from sm120.kernels._ptx import flashinfer_xqa
from sm120.kernels._ptx.executor import PtxFault
from sm120.kernels._ptx.flashinfer_xqa import Verification, error
from sm120.kernels.xqa_mask.reference import visible_drafts

pytestmark = [
    pytest.mark.xdist_group("ptx"),
    pytest.mark.skipif(flashinfer_xqa.missing() is not None, reason=str(flashinfer_xqa.missing())),
]
# Outputs and softmax weights are bf16, KV is FP8: 0.2 % was measured at every width and length.
TOLERANCE = 3e-3
# The flag that all warps read lies where one of them then writes row maxima; the structure has a place for those.
FLAG = (
    "SMemWarpRowMax& smemRowMax = reinterpret_cast<SMemWarpRowMax&>(smem);",
    "SMemWarpRowMax& smemRowMax = mbbuf.rowMax;",
)


def causal(*drafts: int) -> list[list[list[bool]]]:
    return [visible_drafts("causal", count) for count in drafts]


def tree(drafts: int) -> list[list[bool]]:
    """Draft i continues draft (i - 1) // 2, and sees itself and those before it on its branch."""
    table = []
    for i in range(drafts):
        branch, at = {i}, i
        while at > 0:
            at = (at - 1) // 2
            branch.add(at)
        table.append([j in branch for j in range(drafts)])
    return table


@pytest.mark.parametrize("drafts", [1, 2, 4, 8])
def test_every_width(drafts):
    case = Verification([200], [drafts], causal(drafts), q_len=drafts)
    assert error(case.run()[0], case.expected()) < TOLERANCE


@pytest.mark.parametrize("kind", ["full", "tree", "ragged"])
def test_other_masks_and_several_requests(kind):
    if kind == "ragged":
        case = Verification([300, 64, 130], [8, 3, 1], causal(8, 3, 1))
    else:
        case = Verification([300, 77], [8, 8], [visible_drafts("full", 8) if kind == "full" else tree(8)] * 2)
    assert error(case.run()[0], case.expected()) < TOLERANCE


@pytest.mark.parametrize("schedule", ["reverse", "random"])
def test_the_order_of_warps_changes_nothing(schedule):
    case = Verification([150], [8], causal(8))
    assert torch.equal(case.run(schedule=schedule)[0], case.run()[0])


@pytest.mark.parametrize("order", ["one by one", "halves, cut off"])
def test_how_the_tensor_core_sums_changes_roundings_only(order):
    case = Verification([150], [8], causal(8))
    assert error(case.run(tensor_order=order)[0], case.expected()) < TOLERANCE


def test_a_mask_one_draft_too_wide_is_noticed():
    case = Verification([150], [8], causal(8))
    wrong = torch.roll(case.mask, 2)
    assert error(case.run(mask=wrong)[0], case.expected()) > 10 * TOLERANCE


def test_a_mask_with_too_few_rows_is_read_past_its_end():
    """What `xqa-mask-contract` refuses: the kernel takes the rows that the lengths say, whatever the mask holds."""
    case = Verification([150, 150], [8, 8], causal(8, 8))
    with pytest.raises(PtxFault, match="ld.global.*is in no tensor of the launch"):
        case.run(mask=case.mask[:8].contiguous())


def test_a_mask_of_another_width_gives_wrong_answers_without_a_word():
    """Rows packed for 40 drafts (two 32-bit words) read as rows of 8 (one): every second row is another request's half."""
    case = Verification([150], [8], causal(8))
    wide = Verification([150], [8], [[row + [False] * 32 for row in case.tables[0]]], q_len=40)
    assert error(case.run(mask=wide.mask)[0], case.expected()) > 10 * TOLERANCE


RELEASED = flashinfer_xqa.has(FLAG[0])  # else this FlashInfer has the patch, and the race is put back
RACE, SOUND = (None, FLAG) if RELEASED else (FLAG[::-1], None)


def test_blocks_that_share_a_sequence_race_in_the_release():
    """All warps read the flag `isLastCta`; one of them then writes row maxima over it, with no barrier in between."""
    case = Verification([600], [8], causal(8))
    with pytest.raises(PtxFault, match="race: shared byte 0 .*(may still read it|with no barrier in between)"):
        case.run(blocks=3, edit=RACE)


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_the_flag_in_a_place_of_its_own(schedule):
    """Then everything holds, given that the last prefetches of warps that have exited have landed (see README)."""
    case = Verification([600], [8], causal(8))
    with pytest.raises(PtxFault, match="that nobody has waited for"):
        case.run(blocks=3, edit=SOUND, schedule=schedule)
    assert error(case.run(blocks=3, edit=SOUND, schedule=schedule, land_at_exit=True)[0], case.expected()) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_four_requests_of_4096_tokens(kv_heads):
    case = Verification([4096] * 4, [8] * 4, causal(8, 8, 8, 8), kv_heads=kv_heads)
    out, counts = case.run()
    assert error(out, case.expected()) < TOLERANCE
    # 296 products a tile and warp; nothing is multiplied twice
    assert counts.instructions["mma"] == 266240 * kv_heads
    assert flashinfer_xqa.executable()[1][3] == 32
