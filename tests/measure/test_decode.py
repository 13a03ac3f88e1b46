"""Decode is timed both ways, or refused."""

from __future__ import annotations

import pytest

from sm120.integration.measure.decode import decode_rates, measure_decode

from .answers import answer


def test_decode_both_ways():
    streams = [answer(), answer(sent=0.0, first=2.0, last=6.0)]
    found = decode_rates(streams, 21)
    assert found.streams == [10.0, 5.0] and found.per_stream == 7.5
    assert found.makespan == pytest.approx(42 / 6)
    # Four tokens in the first event are not "after the first token".
    assert decode_rates([answer(first_tokens=4)], 21).per_stream == pytest.approx(17 / 2)


def test_decode_refuses_what_it_cannot_time(endpoint, behaviour):
    assert measure_decode(endpoint, 2, seed="a", characters=50, tokens=6).refused is None
    behaviour.stop_early = True
    assert "made 3 of 6 tokens" in measure_decode(endpoint, 2, seed="b", characters=50, tokens=6).refused
    behaviour.stop_early, behaviour.one_piece = False, True
    assert "one piece" in measure_decode(endpoint, 1, seed="c", characters=50, tokens=6).refused
    assert "made None" in decode_rates([answer(completion_tokens=None)], 21).refused
