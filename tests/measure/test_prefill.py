"""Cold prefill, reuse and restore never share a number, and none is given where they look alike."""

from __future__ import annotations

import pytest

from sm120.integration.measure.prefill import (
    cold_timing,
    measure_prefill,
    measure_restore,
    measure_restores,
    restore_timing,
    restores_timing,
)
from sm120.integration.measure.texts import text

from .answers import answer


def test_three_numbers_that_stay_apart(endpoint, behaviour):
    behaviour.start_seconds = 0.2
    cold, reuse = measure_prefill(endpoint, 300, seed="a", repeats=3)
    assert cold.kind == "cold prefill" and cold.refused is None
    assert cold.rate is not None  # never faster than the server; a busy machine adds to its time
    assert cold.tokens / 0.8 < cold.rate < 1.01 * cold.tokens / 0.2
    assert reuse.kind == "radix reuse" and reuse.rate is None and reuse.refused is None
    restore = measure_restore(endpoint, 300, seed="a", settle=0)
    assert restore.kind == "storage restore" and restore.rate is None
    assert restore.tokens > 200 and restore.refused is None


@pytest.mark.parametrize(
    ("report", "says"),
    [("none", "does not report cached tokens"), ("zero", "reported as not cached"), ("all", "never sent before")],
)
def test_no_prefill_number_where_cold_and_cached_look_alike(endpoint, behaviour, report, says):
    behaviour.report = report
    cold, reuse = measure_prefill(endpoint, 300, seed="a")
    assert cold.rate is None and says in cold.refused
    assert reuse.refused


def test_one_warm_prompt_takes_the_number_away(endpoint, behaviour):
    behaviour.device.add(text("a prefill 1", 300))
    cold, _ = measure_prefill(endpoint, 300, seed="a")
    assert cold.rate is None and "1 of 3 prompts were not cold: device" in cold.refused
    assert cold_timing([answer()], None).rate == pytest.approx(100)


def test_a_restore_is_only_what_came_from_storage(endpoint, behaviour):
    behaviour.storage = False
    assert measure_restore(endpoint, 300, seed="a", settle=0).refused == "the prefix came from: cold"
    behaviour.storage, behaviour.tiers = True, False
    assert "tier unknown" in measure_restore(endpoint, 300, seed="b", settle=0).refused
    behaviour.flush = False
    assert "cannot drop" in measure_restore(endpoint, 300, seed="c", settle=0).refused
    mixed = answer(cached_tokens=90, tiers={"device": 10, "host": 0, "storage": 80})
    assert restore_timing(mixed).refused == "the prefix came from: mixed"


def test_restores_at_once_count_only_when_all_came_from_storage(endpoint, behaviour):
    found = measure_restores(endpoint, 3, 200, seed="a", settle=0)
    assert found.refused is None and found.tokens > 3 * 190
    behaviour.storage = False
    assert "3 of 3 prefixes came from: cold" in measure_restores(endpoint, 3, 200, seed="b", settle=0).refused
    good = answer(cached_tokens=80, tiers={"device": 0, "host": 0, "storage": 80})
    assert restores_timing([good, good]).tokens == 160 and restores_timing([good, good]).seconds == [1.0]
    assert restores_timing([good, answer()]).tokens is None
