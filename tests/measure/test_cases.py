"""Needles are found, and tool calls are scored, each in two ways."""

from __future__ import annotations

import json

import pytest

from sm120.integration.measure.cases import TOOL_CASES, has_number, measure_needles, measure_tools, score

from .answers import answer


def test_needles(endpoint, behaviour):
    assert all(needle.found for needle in measure_needles(endpoint, 400, seed="a", depths=(0.0, 0.9)))
    behaviour.echo_needle = False
    assert not any(needle.found for needle in measure_needles(endpoint, 400, seed="b", depths=(0.0, 0.9)))
    assert has_number(" 1,234,567.", "1234567") and not has_number("7 or 1234567", "1234567")
    assert not has_number("", "1") and not has_number("12345678", "1234567")


def test_tool_calls_are_scored_twice(endpoint, behaviour):
    wanted = {asked: call for _, asked, call in TOOL_CASES}
    behaviour.chat = lambda asked: [(wanted[asked][0], json.dumps(wanted[asked][1]))] if wanted[asked] else []
    assert all(one.exact and one.semantic for one in measure_tools(endpoint))
    behaviour.chat = None
    assert all(one.exact is None and "400" in one.refused for one in measure_tools(endpoint))


@pytest.mark.parametrize(
    ("calls", "exact", "semantic"),
    [
        ([("tide_at", '{"hour": 14, "gauge": "Nordmole"}')], True, True),
        ([("tide_at", '{"hour": "14", "gauge": " nordmole"}')], False, True),
        ([("tide_at", '{"hour": 14.0, "gauge": "Nordmole"}')], False, True),
        ([("tide_at", '{"hour": 15, "gauge": "Nordmole"}')], False, False),
        ([("tide_at", '{"hour": 14, "gauge": "Nordmole", "x": 1}')], False, False),
        ([("book_berth", '{"hour": 14, "gauge": "Nordmole"}')], False, False),
        ([("tide_at", '{"hour": 14,')], False, False),
        ([("tide_at", '{"hour": 14, "gauge": "Nordmole"}')] * 2, False, False),
        ([], False, False),
    ],
    ids=["right", "quoted", "float", "other", "more", "name", "cut", "twice", "none"],
)
def test_scores(calls, exact, semantic):
    made = answer(tool_calls=[{"name": name, "arguments": arguments} for name, arguments in calls])
    found = score("x", made, TOOL_CASES[0][2])
    assert (found.exact, found.semantic) == (exact, semantic)


def test_a_call_where_none_was_wanted_is_wrong():
    made = answer(tool_calls=[{"name": "tide_at", "arguments": "{}"}])
    assert score("x", made, None).exact is False and score("x", answer(), None).exact is True
