"""The planner's sizes against token counts that others published: see published_tokens.py and decision 0122."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .published_tokens import (
    CARD,
    MIB,
    PAIRS,
    free_before_loading,
    ledger,
    missing_fraction,
    planned_here,
    predicted,
)


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))


def test_the_published_counts_follow_from_one_unknown():
    first, second = PAIRS
    assert predicted(first) == first.after.tokens == 824_384  # by construction: it gives the unknown
    assert predicted(second) == second.after.tokens == 1_194_496
    # The memory that the first pair needs is that of the card, less what the driver and a context take.
    assert 0.98 * CARD < free_before_loading() < 0.99 * CARD
    assert round(missing_fraction(), 4) == 0.92


def test_this_runtimes_own_accounting_is_within_a_thousandth():
    assert abs(planned_here() / 824_384 - 1) < 0.001


def test_the_ledger_adds_up_and_a_wrong_reading_does_not():
    first, second = map(ledger, PAIRS)
    assert (first.budget, first.slots, first.draft_slots) == (78_784 * 14_144, 0, 0)
    assert second.budget == 75_712 * 43_008 - 8 * 153_944_064 == 2_024_669_184
    # Without the draft's own cache, without the slots, or with one request less, nothing near a page would fit.
    brought = second.brought(free_before_loading())
    assert abs(second.budget - brought) < 64 * second.bytes_per_token
    for wrong in (75_712 * 32_768 - 8 * 153_944_064, 75_712 * 43_008, second.budget - 8 * 153_944_064):
        assert abs(wrong - brought) > 64 * second.bytes_per_token
    # Sixteen slots carry four requests only with lazy tracking buffers; otherwise a row of drafts would go too.
    slots = replace(PAIRS[1], after=replace(PAIRS[1].after, settings=("max-mamba-cache-size=16",)))
    assert ledger(slots).draft_slots == -8


def test_what_plan_takes_for_a_card_is_less_than_a_card_has():
    assert 96_600 * MIB < CARD
