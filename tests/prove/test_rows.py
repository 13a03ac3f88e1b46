"""What makes a row of a proof fail."""

import pytest

from .proof_rows import one


@pytest.mark.parametrize(
    ("wanted", "cached", "problem"),
    [
        ("nowhere", {"device": 1}, "a cold request found cached tokens"),
        ("device", {"device": 0}, "no token came from device"),
        ("device", {"device": 16, "host": 16}, "tokens came from host, beyond device"),
        ("host", {"device": 16}, "no token came from host"),
        ("storage", {"host": 16}, "no token came from storage"),
    ],
)
def test_a_row_from_the_wrong_tier_fails(wanted: str, cached: dict[str, int], problem: str) -> None:
    row = one(wanted=wanted, cached=cached)
    assert not row.ok and row.problems == (problem,)


def test_a_row_that_had_to_accept_drafts_and_did_not_fails() -> None:
    assert one(accepts=True, accept_length=1.0).problems == ("no draft token was accepted",)
    assert one(accepts=True, accept_length=1.2).ok
