"""What the small checkout makes is what tests believe."""

from __future__ import annotations

from .mini_checkout import (
    CHANGED,
    PRISTINE,
    git_diff,
)


def test_git_diff_is_what_the_fixtures_say():
    assert git_diff(PRISTINE, {"alpha/core.py": CHANGED}).count("\n+") == 2
