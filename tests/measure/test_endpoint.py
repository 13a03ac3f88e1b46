"""One request, streamed: when its first token came, and what is no answer."""

from __future__ import annotations

import pytest

from sm120.integration.measure.endpoint import NotAnswered, take

from .answers import answer


def test_reasoning_is_timed_and_kept_apart_from_the_text():
    one = answer(first=0.0, last=0.0)
    for now, delta in ((1.0, {"reasoning_content": "Hm"}), (2.0, {"reasoning": "."}), (3.0, {"content": "Yes"})):
        take(one, {"choices": [{"delta": delta}]}, now)
    assert (one.first, one.last, one.reasoning, one.text) == (1.0, 3.0, "Hm.", "Yes")


def test_an_error_in_a_stream_is_no_answer():
    with pytest.raises(NotAnswered, match="out of memory"):
        take(answer(), {"error": {"message": "out of memory"}}, 0.0)


def test_the_time_to_the_first_token_ends_with_it(endpoint, behaviour):
    behaviour.start_seconds, behaviour.token_seconds = 0.3, 0.05
    answer = endpoint.complete("a prompt of some words", 8, ignore_eos=True)
    assert 0.3 <= answer.seconds_to_first < answer.last - answer.sent, "the other seven tokens are not in it"
    behaviour.start_seconds = 0.0
    assert endpoint.complete("another prompt", 8).seconds_to_first < answer.seconds_to_first
