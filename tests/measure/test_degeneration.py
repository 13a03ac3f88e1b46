"""Texts that fell apart are no answers, and texts that only look odd are."""

import random

import pytest

from sm120.integration.measure.decode import measure_decode
from sm120.integration.measure.degeneration import degeneration
from sm120.integration.measure.endpoint import NotAnswered, asked_text
from sm120.integration.measure.qualify import of_decode
from sm120.integration.measure.texts import text as english

WORDS = "The tide turned at noon and the pilots went home before the lamps were lit along the quay. "
PARAGRAPH = english("a text of our own", 3000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WORDS + "!" * 502, "502 times '!'"),
        (WORDS + "the " * 60, "60 times 'the'"),
        (PARAGRAPH[:900] + "and so it goes on, said the harbour master. " * 12, "repeat"),
        (PARAGRAPH[:400] + PARAGRAPH[1000:1700] * 7, "repeat"),
        ("0" * 30 + " " + "01" * 200, "repeat"),
        ("".join(random.Random(1).choices("ab", k=600)), "bits a character"),
        (WORDS + "\ufffd" * 40, "no valid UTF-8"),
        (
            WORDS * 2 + "潮水在中午转向领航员们回家了灯还没有点亮港口很安静船都停着人们睡了",
            "CJK, which the prompt does not use",
        ),
        (WORDS + "прилив сменился в полдень и лоцманы ушли домой", "CYRILLIC"),
    ],
    ids=["run", "word", "loop", "long_loop", "pair", "two_letters", "bytes", "chinese", "russian"],
)
def test_what_fell_apart_is_named(text, says):
    assert says in degeneration(text, "Write about the harbour.")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4471.",
        "!!!",
        PARAGRAPH,
        WORDS,
        "| a | b |\n| --- | --- |\n" + "\n".join(f"| {i} | {i * i} |" for i in range(60)),
        "# Title\n" + "=" * 70 + "\n" + WORDS + "\n" + "-" * 70,
        "\n".join(f"    def step_{i}(self, value):\n        return value * {i * 37 % 101} + {i}" for i in range(20)),
        "Let α be the angle and β its complement; then sin α = cos β, and so on for γ, δ and ε. " + WORDS,
        " ".join(str(i * 7919 % 99991) for i in range(200)),
        WORDS + " one cut off\ufffd",
    ],
    ids=["nothing", "short", "three", "long", "words", "table", "rulers", "code", "greek", "numbers", "cut"],
)
def test_what_only_looks_odd_passes(text):
    assert degeneration(text, "Write about the harbour.") is None


def test_a_script_that_was_asked_for_is_right():
    russian = "прилив сменился в полдень и лоцманы ушли домой, пока фонари ещё не зажгли вдоль причала"
    assert degeneration(russian, "Answer in English.") and degeneration(russian, "Ответь по-русски.") is None
    message = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Ответь"}, {"type": "image_url"}]}]}
    assert "Ответь" in asked_text(message)


def test_a_speed_with_broken_text_is_no_result(endpoint, behaviour):
    behaviour.text = WORDS + "!" * 502
    rows = of_decode(measure_decode(endpoint, 2, seed="runs", characters=600, tokens=64))
    assert [row.value for row in rows] == [None, None] and all("502 times '!'" in row.refused for row in rows)
    assert "502 times" in endpoint.record.read_text()  # and what was said is kept
    with pytest.raises(NotAnswered, match="fell apart"):
        endpoint.complete("x", 64)
    endpoint.random_weights = True
    assert of_decode(measure_decode(endpoint, 2, seed="runs", characters=600, tokens=64))[0].value
