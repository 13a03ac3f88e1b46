"""Speculative tokens are compared with the run without drafts."""

from __future__ import annotations

from sm120.integration.prove.reference import Verdict
from sm120.integration.prove.speculation import against_base

from .proof_rows import EQUAL


def test_speculation_is_compared_with_the_run_without() -> None:
    other = Verdict(True, 0, None)
    assert against_base([1, 2, 3], [1, 2, 3], Verdict(False, 0, 0), dtype="float32") == EQUAL
    assert against_base([1, 9, 3], [1, 2, 3], other, dtype="float32") == Verdict(False, 0, 1)
    # The reference alone is no excuse; a tie that it confirms is one, in float16 only.
    assert not against_base([1, 9, 3], [1, 2, 3], other, dtype="float16").equal
    assert against_base([1, 9, 3], [1, 2, 3], Verdict(True, 1, None), dtype="float16").equal
    assert not against_base([1, 9, 3], [1, 2, 3], Verdict(True, 1, None), dtype="float32").equal
    assert against_base([1, 2], [1, 2, 3], other, dtype="float32") == Verdict(False, 0, 2)
