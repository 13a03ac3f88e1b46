"""Needles and tool calls: right or wrong, with what was asked and what came."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from sm120.integration.measure.endpoint import Answer, Endpoint, NotAnswered
from sm120.integration.measure.texts import needle_text


@dataclass(frozen=True)
class Needle:
    depth: float
    tokens: int | None
    found: bool | None
    said: str
    refused: str | None = None


@dataclass(frozen=True)
class ToolScore:
    """`exact`: the name and the very arguments. `semantic`: the same call after harmless differences are taken away."""

    case: str
    exact: bool | None
    semantic: bool | None
    said: str
    refused: str | None = None


def measure_needles(endpoint: Endpoint, characters: int, *, seed: str, depths: tuple[float, ...]) -> list[Needle]:
    """Ask for one number in texts of about `characters` characters, at each depth."""
    results = []
    for depth in depths:
        prompt, number = needle_text(f"{seed} {depth}", characters, depth)
        try:
            answer = endpoint.complete(prompt, 16)
        except NotAnswered as error:
            results.append(Needle(depth, None, None, "", str(error)))
            continue
        results.append(Needle(depth, answer.prompt_tokens, has_number(answer.text, number), answer.text))
    return results


def has_number(said: str, number: str) -> bool:
    """Whether the first number that was said is `number`, whatever separates its thousands."""
    match = re.search(r"\d[\d,. \u202f]*", said)
    return match is not None and re.sub(r"\D", "", match[0]) == number


def _tool(name: str, what: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": parameters}}


TOOLS = [
    _tool("tide_at", "Height of the tide at a gauge", gauge={"type": "string"}, hour={"type": "integer"}),
    _tool("book_berth", "Book a berth", boat={"type": "string"}, nights={"type": "integer"}, power={"type": "boolean"}),
]
# What is asked, and the one call that answers it (None: no call).
TOOL_CASES: tuple[tuple[str, str, tuple[str, dict[str, Any]] | None], ...] = (
    ("one call", "How high is the tide at the gauge Nordmole at 14 o'clock?", ("tide_at", {"gauge": "Nordmole", "hour": 14})),
    ("three types", "Book the boat Halcyon for 3 nights with power.",
     ("book_berth", {"boat": "Halcyon", "nights": 3, "power": True})),
    ("no call", "Say good morning in one word; look nothing up.", None),
)  # fmt: skip


def measure_tools(endpoint: Endpoint) -> list[ToolScore]:
    """Every case as one chat turn with both tools offered; the calls take less than 96 tokens."""
    results = []
    for case, asked, wanted in TOOL_CASES:
        try:
            answer = endpoint.chat([{"role": "user", "content": asked}], 96, tools=TOOLS)
        except NotAnswered as error:
            results.append(ToolScore(case, None, None, "", str(error)))
            continue
        results.append(score(case, answer, wanted))
    return results


def score(case: str, answer: Answer, wanted: tuple[str, dict[str, Any]] | None) -> ToolScore:
    """Compare the calls of an answer with the one that was wanted."""
    said = json.dumps(answer.tool_calls) if answer.tool_calls else answer.text[:200]
    if wanted is None:
        return ToolScore(case, not answer.tool_calls, not answer.tool_calls, said)
    if len(answer.tool_calls) != 1:
        return ToolScore(case, False, False, said)
    call = answer.tool_calls[0]
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        return ToolScore(case, False, False, said)
    name = call["name"] == wanted[0]
    # `1 == True` in Python, and 14.0 == 14: the exact score compares the JSON.
    exact = name and json.dumps(arguments, sort_keys=True) == json.dumps(wanted[1], sort_keys=True)
    return ToolScore(case, exact, name and _loose(arguments) == _loose(wanted[1]), said)


def _loose(value: Any) -> Any:
    """Case, outer blanks and numbers or truth values in quotes do not count."""
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    text = str(value).strip().lower()
    try:
        return float(text)
    except ValueError:
        return text
