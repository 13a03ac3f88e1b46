"""The greedy verdict: which served tokens count as those of the reference."""

from __future__ import annotations

import math

import pytest

from sm120.integration.prove.reference import Verdict, judge

from .proof_rows import EQUAL


@pytest.mark.parametrize(
    ("shortfall", "tokens", "verdict"),
    [
        ([0.0, 0.0], [1, 2], EQUAL),
        ([0.0, 0.01], [1, 2], Verdict(True, 1, None)),
        ([0.0, 0.2], [1, 2], Verdict(False, 0, 1)),
        ([math.nan, 0.0], [1, 2], Verdict(False, 0, 0)),
        ([0.0], [1], Verdict(False, 0, 1)),
        ([0.0, 0.0, 0.0], [1, 2, 3], Verdict(False, 0, 2)),
        ([], [], Verdict(False, 0, 0)),
    ],
    ids=["equal", "tie", "different", "nan", "too-few", "too-many", "none"],
)
def test_judge(shortfall: list[float], tokens: list[int], verdict: Verdict) -> None:
    assert judge(tokens, shortfall, wanted=2, tolerance=0.05) == verdict
