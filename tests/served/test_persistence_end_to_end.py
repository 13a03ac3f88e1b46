"""Tiny models on the patched runtime: every tier, restart, kill -9, other namespace and damage give equal tokens."""

import pytest

from sm120.integration.persistence.end_to_end import SETUPS, failures, run_setup

pytestmark = [pytest.mark.served, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", SETUPS)
def test_tokens_are_equal_whatever_tier_they_come_from(name, runtime, work):
    lines = run_setup(name, runtime, work, long=False)
    assert failures(lines) == []
    restored = [line for line in lines if line.step.startswith("storage hit after restart")]
    assert all(line.recomputed < line.prompt_tokens for line in restored)
