"""Tiny models on the patched runtime: every tier, restart, kill -9, other namespace and damage give equal tokens."""

import os

import pytest

from sm120.integration.persistence.end_to_end import SETUPS, failures, run_setup
from sm120.integration.prove.runtime import Runtime

pytestmark = [pytest.mark.served, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", SETUPS)
def test_tokens_are_equal_whatever_tier_they_come_from(name, tmp_path):
    if not os.environ.get("SM120_RUNTIME"):
        pytest.skip("SM120_RUNTIME names no runtime folder")
    lines = run_setup(name, Runtime.from_environment(), tmp_path)
    assert failures(lines) == []
    restored = [line for line in lines if line.step.startswith("storage hit after restart")]
    assert all(line.recomputed < line.prompt_tokens for line in restored)
