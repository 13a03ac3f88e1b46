"""A row of a proof that holds, for tests to change."""

from __future__ import annotations

from sm120.integration.prove.reference import Verdict
from sm120.integration.prove.rows import Row

EQUAL = Verdict(True, 0, None)


def one(**changes) -> Row:
    values = {"group": "dense", "step": "cold", "verdict": EQUAL, "cached": {}, "seconds": 1.0}
    return Row(**{**values, **changes})
