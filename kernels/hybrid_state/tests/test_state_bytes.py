"""The byte formulas against counting, and the slot count against the budget it must fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120.kernels.hybrid_state import state_bytes as sb

SHAPE = sb.LinearStateShape(
    layers=2,
    num_k_heads=1,
    num_v_heads=2,
    head_k_dim=4,
    head_v_dim=3,
    conv_dim=14,
    conv_kernel=4,
    ssm_itemsize=4,
    conv_itemsize=2,
)


def test_sizes_are_what_counting_gives():
    assert SHAPE.slot_bytes == 2 * (2 * 3 * 4 * 4 + 14 * 3 * 2)
    assert sb.intermediate_ssm_bytes(SHAPE, rows=5, draft_tokens=4) == 2 * 5 * 4 * (2 * 3 * 4) * 4
    for itemsize in (2, 4):  # the conv state's stays 2
        kept = sb.recover_window_bytes(SHAPE, rows=5, draft_tokens=4, itemsize=itemsize)
        assert kept == 2 * 5 * 4 * ((4 + 6) * itemsize + 2 * 2 * 4)
    assert sb.conv_window_bytes(SHAPE, rows=5, draft_tokens=4, deduplicated=False) == 2 * 5 * 14 * 12 * 2
    assert sb.conv_window_bytes(SHAPE, rows=5, draft_tokens=4, deduplicated=True) == 2 * 5 * 14 * 6 * 2


@given(window=st.integers(1, 8), drafts=st.integers(1, 16))
def test_deduplicated_windows_hold_each_input_once(window, drafts):
    seen = {t + w for t in range(drafts) for w in range(window)}
    assert sb.conv_window_elements(window, window, drafts, deduplicated=True) == len(seen)
    assert sb.conv_window_elements(window, window, drafts, deduplicated=False) == drafts * window


@given(
    budget=st.integers(0, 10**9),
    slot=st.integers(1, 10**6),
    row=st.integers(0, 10**6),
    ratio=st.integers(1, 6),
)
def test_the_slots_fit_and_one_more_would_not(budget, slot, row, ratio):
    slots = sb.slots_in_budget(budget, slot_bytes=slot, row_bytes=row, slots_per_request=ratio)
    cost = lambda n: ratio * slot * (n + 1) + row * (n + ratio)  # noqa: E731  (times ratio)
    assert cost(slots) <= ratio * budget < cost(slots + 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sb.conv_window_elements(7, 3, 4, deduplicated=True), "multiple of window = 3"),
        (lambda: sb.conv_window_elements(6, 3, 0, deduplicated=True), "draft_tokens is 0"),
        (lambda: sb.intermediate_ssm_bytes(SHAPE, rows=0, draft_tokens=4), "rows is 0"),
        (lambda: sb.recover_window_bytes(SHAPE, rows=5, draft_tokens=4, itemsize=0), "itemsize is 0"),
        (lambda: sb.slots_in_budget(9, slot_bytes=0, row_bytes=0, slots_per_request=1), "slot_bytes is 0"),
        (lambda: sb.slots_in_budget(9, slot_bytes=1, row_bytes=-1, slots_per_request=1), "row_bytes is -1"),
    ],
    ids=["window", "drafts", "rows", "itemsize", "slot", "row"],
)
def test_senseless_sizes_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
