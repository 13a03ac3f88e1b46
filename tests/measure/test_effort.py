"""Levels of reasoning effort: one score a level, and no score where there cannot be one."""

import math
import re

import pytest

from sm120.integration.measure import effort
from sm120.integration.measure.effort import EFFORT_CASES, LEVELS, is_right, measure_efforts
from sm120.integration.measure.qualify import of_efforts

WANTED = {asked: wanted for _, asked, wanted in EFFORT_CASES}


def level_of(body) -> str:
    carried = {key: body[key] for key in ("reasoning_effort", "chat_template_kwargs") if key in body}
    return next(level for level, extra in LEVELS.items() if extra == carried)


def talker(**of_level):
    """Answers right with 10 tokens, unless a level of its own says otherwise; counts what it was asked."""
    asked = []

    def talk(body):
        level = level_of(body)
        asked.append(level)
        question = body["messages"][0]["content"].removesuffix(effort.HOW_TO_ANSWER)
        reply = {"text": f"Answer: {WANTED[question]}", "tokens": 10, "prompt_tokens": 50}
        special = of_level.get(level.replace(" ", "_"), {})
        return special if isinstance(special, tuple) else {**reply, **special}

    talk.asked = asked
    return talk


def by_kind(measurements, level):
    return {one.kind: one for one in measurements if one.effort == level}


def test_the_answers_are_the_answers():
    shown = next(minutes for minutes in range(1, 2000) if minutes * 56 % 60 == 0 and minutes * 56 // 60 == 504)
    win = {0: False}
    for left in range(1, 24):
        win[left] = any(not win[left - take] for take in range(1, 5) if take <= left)
    first = [take for take in range(1, 5) if not win[23 - take]]
    digits = sum("7" in str(number) for number in range(1, 201))
    right = {"bells": math.lcm(12, 18, 30), "packets": first[0], "digits": digits, "clock": shown}
    assert len(first) == 1 and {case: int(wanted) for case, _, wanted in EFFORT_CASES} == right


def test_each_level_gets_the_same_cases_and_its_own_numbers(endpoint, behaviour):
    behaviour.talk = talker(
        high={"tokens": 90, "reasoning": "Hm.", "prompt_tokens": 57}, none={"text": "Answer: 5", "tokens": 3}
    )
    levels = ("default", "none", "high")
    found = of_efforts(measure_efforts(endpoint, levels, 128))
    assert behaviour.talk.asked == [level for level in levels for _ in EFFORT_CASES]
    for level, score, tokens in (("default", 1, 10), ("none", 0, 3), ("high", 1, 90)):
        numbers = by_kind(found, level)
        assert numbers["reasoning score"].value == score
        assert numbers["reasoning tokens"].value == tokens and len(numbers["reasoning tokens"].values) == 4
        assert numbers["reasoning time"].value > 0 and numbers["reasoning time"].new_tokens == 128
    # A level that leaves the prompt as it was may be one that nobody reads.
    assert "shows no switch for it" in by_kind(found, "none")["reasoning score"].note
    assert "heeded" not in by_kind(found, "high")["reasoning score"].note


def test_levels_that_say_the_same_to_the_endpoint_would_be_one():
    said = [str(extra) for extra in LEVELS.values()]
    assert len(set(said)) == len(said)


def test_a_refused_level_is_refused_and_never_zero(endpoint, behaviour):
    behaviour.talk = talker(max=(400, "reasoning_effort must be low, medium or high"))
    found = of_efforts(measure_efforts(endpoint, ("max", "high"), 128))
    assert [one.outcome for one in found] == ["refused"] * 3 + [None] * 3
    for one in by_kind(found, "max").values():
        assert one.value is None and "must be low" in one.refused and one.shown() == "refused"
    assert by_kind(found, "high")["reasoning score"].value == 1
    assert behaviour.talk.asked.count("max") == 1


@pytest.mark.parametrize("status", [401, 408, 429, 500, 503])
def test_a_fault_is_no_refusal(endpoint, behaviour, status):
    behaviour.talk = talker(high=(status, "not now"))
    for one in by_kind(of_efforts(measure_efforts(endpoint, ("high",), 128)), "high").values():
        assert one.outcome is None and one.shown() == "not measured" and str(status) in one.refused


def test_without_chat_no_level_is_called_refused(endpoint, behaviour):
    found = of_efforts(measure_efforts(endpoint, ("default", "high"), 128))
    assert len(found) == 6 and all(one.outcome is None and "no chat template" in one.refused for one in found)


def test_an_answer_without_an_end_leaves_no_number(endpoint, behaviour):
    behaviour.talk = talker(high={"finish": "length"})
    found = by_kind(of_efforts(measure_efforts(endpoint, ("high",), 128)), "high")
    assert {one.refused for one in found.values()} == {"bells: cut off at 128 tokens"}
    assert all(one.outcome is None for one in found.values()) and behaviour.talk.asked.count("high") == 1


def test_tokens_that_are_not_told_are_not_counted(endpoint, behaviour):
    behaviour.talk = talker(default={"tokens": None, "prompt_tokens": None}, low={"prompt_tokens": None})
    found = of_efforts(measure_efforts(endpoint, ("default", "low"), 128))
    numbers = by_kind(found, "default")
    assert "how many tokens" in numbers["reasoning tokens"].refused and numbers["reasoning score"].value == 1
    assert "heeded" not in by_kind(found, "low")["reasoning score"].note


def test_bad_input(endpoint):
    with pytest.raises(ValueError, match="levels has 'very', needs to be of default"):
        measure_efforts(endpoint, ("very",), 10)
    with pytest.raises(ValueError, match="budget is 0"):
        measure_efforts(endpoint, ("high",), 0)


SAID = [
    ("Answer: 180", True),
    ("It is lcm.\n\n**Answer: 180**", True),
    ("answer = 180.", True),
    ("Answer:\n180", True),
    ("Answer: $180$", True),
    ("<think>Answer: 7</think>\nAnswer: 180", True),
    ("Answer: 90\nNo, wait.\nAnswer: 180", True),
    ("180", False),
    ("Answer: 18", False),
    ("Answer: 1800", False),
    ("Answer: -180", False),
    ("Answer: 18.0", False),
    ("Answer: 180 or 360", False),
    ("Answer: 180\nNo, wait.\nAnswer: 90", False),
    ("I think 180.\nAnswer: 90", False),
    ("<think>Answer: 180", False),
    ("Answer: 180</think>\nI do not know.", False),
    ("", False),
]


def check_scorer(scorer) -> None:
    for said, right in SAID:
        assert scorer(said, "180") is right, said


def test_scorer():
    check_scorer(is_right)
    assert is_right("Answer: 1,180", "1180") and not is_right("Answer: 1,18", "118")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda said, wanted: wanted in said,
        lambda said, wanted: bool(re.search(rf"Answer\W+{wanted}\b", effort.spoken(said))),
        lambda said, wanted: is_right(said.replace("think", ""), wanted),
        lambda said, wanted: is_right("Answer: " + said, wanted),
    ],
    ids=["anywhere", "any answer", "reasoning counts", "no label"],
)
def test_a_wrong_scorer_is_caught(wrong):
    with pytest.raises(AssertionError):
        check_scorer(wrong)
