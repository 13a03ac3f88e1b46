"""An answer as an endpoint gave it, for tests to change."""

from __future__ import annotations

from sm120.integration.measure.endpoint import Answer


def answer(**changes) -> Answer:
    whole = dict(sent=0.0, first=1.0, last=3.0, prompt_tokens=100, completion_tokens=21, first_tokens=1,
                 cached_tokens=0, tiers=None, text="", finish="length")  # fmt: skip
    return Answer(**whole | changes)
