"""The same questions at every level of reasoning effort: how often right, how many tokens, how long."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from sm120.integration.measure.endpoint import Answer, Endpoint, NotAnswered

DEFAULT = "default"
# What a request carries at each level. "thinking …" goes to the chat template, which is where Qwen's models look.
LEVELS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "thinking off": {"chat_template_kwargs": {"enable_thinking": False}},
    "thinking on": {"chat_template_kwargs": {"enable_thinking": True}},
    **{level: {"reasoning_effort": level} for level in ("none", "low", "medium", "high", "max")},
}

# What is asked, and the one number that answers it.
EFFORT_CASES: tuple[tuple[str, str, str], ...] = (
    ("bells", "Three harbour bells ring every 12, 18 and 30 minutes. At noon they ring together. After how many "
     "minutes do they next ring together?", "180"),
    ("packets", "A drawer holds 23 seed packets. Ida and Jon take turns, Ida first; each takes 1, 2, 3 or 4 packets, "
     "and who takes the last packet wins. How many must Ida take first to be sure of winning?", "3"),
    ("digits", "Berths are numbered 1 to 200. How many of the numbers contain the digit 7?", "38"),
    ("clock", "A clock falls 4 minutes behind in every true hour. It is set right at 06:00. How many true minutes "
     "after 06:00 does it show 14:24?", "540"),
)  # fmt: skip
HOW_TO_ANSWER = " End with one line: Answer: NUMBER"


@dataclass(frozen=True)
class Effort:
    """One level. `outcome` is "refused" where the endpoint would not take the level; then nothing was scored."""

    level: str
    budget: int
    right: dict[str, bool] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    reason: str | None = None
    outcome: Literal["refused"] | None = None


def measure_efforts(endpoint: Endpoint, levels: tuple[str, ...], budget: int) -> list[Effort]:
    """Every case at every level with at most `budget` tokens. The default is asked first, wanted or not.

    Only an endpoint that answers without a level can refuse one; where chat fails altogether, nothing is "refused".

    Raises:
        ValueError: a level that is not in `LEVELS`, or a budget below 1.
    """
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise ValueError(f"levels has {unknown[0]!r}, needs to be of {', '.join(LEVELS)}")
    if budget < 1:
        raise ValueError(f"budget is {budget}, needs at least 1 token")
    default = measure_effort(endpoint, DEFAULT, budget)
    if not default.answers:
        return [Effort(level, budget, reason=default.reason) for level in levels]
    return [default if level == DEFAULT else measure_effort(endpoint, level, budget) for level in levels]


def measure_effort(endpoint: Endpoint, level: str, budget: int) -> Effort:
    """The cases in order, up to the first that spoils the level."""
    right: dict[str, bool] = {}
    answers: list[Answer] = []
    for case, asked, wanted in EFFORT_CASES:
        try:
            answer = endpoint.chat([{"role": "user", "content": asked + HOW_TO_ANSWER}], budget, **LEVELS[level])
        except NotAnswered as error:
            outcome: Literal["refused"] | None = "refused" if error.declined and level != DEFAULT else None
            return Effort(level, budget, right, answers, str(error), outcome)
        answers.append(answer)
        # An answer without an end has no length, no duration and nothing to score.
        if answer.finish == "length":
            return Effort(level, budget, right, answers, f"{case}: cut off at {budget} tokens")
        right[case] = is_right(answer.text, wanted)
    return Effort(level, budget, right, answers)


def is_right(said: str, wanted: str) -> bool:
    """Whether the last line `Answer: …` behind the reasoning holds `wanted` and nothing else."""
    found = re.findall(r"answer\W*[:=][ \t*$_`]*\n?[ \t*$_`]*(\S[^\n]*)", spoken(said), re.IGNORECASE)
    if not found:
        return False
    value = found[-1].strip().rstrip(".").strip("*$_` ")
    return re.sub(r"(?<=\d)[, \u202f](?=\d{3}\b)", "", value) == wanted


def spoken(said: str) -> str:
    """What is said after the reasoning, where the endpoint leaves that in the text; nothing if it never ends."""
    after = said.rpartition("</think>")[2]
    return "" if "<think>" in after else after
