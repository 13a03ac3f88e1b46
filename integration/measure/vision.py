"""Where things are in a picture: asked of pictures made on the spot, scored twice."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any, Literal

from sm120.integration.measure.effort import spoken
from sm120.integration.measure.endpoint import Answer, Endpoint, NotAnswered
from sm120.integration.measure.picture import GRID, picture

# A placeholder that a text model's template leaves is 1 to 3 tokens; a picture of 384 × 384 is 64 and more.
LEAST_PICTURE_TOKENS = 16
BUDGET = 512


@dataclass(frozen=True)
class Position:
    """`exact`: the very `ROW,COLUMN` that was asked for. `semantic`: the same cell in any words."""

    shape: str
    exact: bool
    semantic: bool
    said: str


@dataclass(frozen=True)
class Vision:
    """All shapes of one picture, or why there is no score; `outcome` is "not supported" for an endpoint without sight."""

    positions: list[Position]
    reason: str | None = None
    outcome: Literal["not supported"] | None = None


def measure_vision(endpoint: Endpoint, *, seed: str) -> Vision:
    """Ask for the cell of each shape of one new picture.

    A server that says of its model that it takes no images is not asked. Else the question goes out once without the
    picture. Where that fails, chat does; where only the picture is declined, or adds nothing to the prompt, the
    endpoint has no vision: many drop what they cannot see and answer all the same.
    """
    if endpoint.takes_images() is False:
        return Vision([], "not applicable: the model takes no images, says the server (/model_info)", "not supported")
    shown = picture(seed)
    url = "data:image/png;base64," + base64.b64encode(shown.png).decode()
    positions: list[Position] = []
    blind: Answer | None = None
    for shape, cell in shown.cells.items():
        asked = question(shape)
        try:
            blind = blind or endpoint.chat([{"role": "user", "content": asked}], 1)
        except NotAnswered as error:
            return Vision([], str(error))
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": asked},
        ]
        try:
            answer = endpoint.chat([{"role": "user", "content": parts}], BUDGET)
        except NotAnswered as error:
            # Who has seen one picture has vision; a later refusal is a failure like any other.
            return Vision([], str(error), "not supported" if error.declined and not positions else None)
        if not positions and (unseen := _unseen(blind, answer)):
            return unseen
        if answer.finish == "length":
            return Vision([], f"{shape}: cut off at {BUDGET} tokens")
        positions.append(score_position(shape, answer.text, cell))
    return Vision(positions)


def question(shape: str) -> str:
    """One question with one answer."""
    return (
        f"The picture is a grid of {GRID} rows and {GRID} columns. In which cell is the {shape}? "
        "Answer with ROW,COLUMN only, two numbers counted from 1 at the top left."
    )


def _unseen(blind: Answer, answer: Answer) -> Vision | None:
    if blind.prompt_tokens is None or answer.prompt_tokens is None:
        return Vision([], "the endpoint does not report prompt tokens: nothing tells whether the picture was seen")
    added = answer.prompt_tokens - blind.prompt_tokens
    if added < LEAST_PICTURE_TOKENS:
        return Vision([], f"the picture added {added} tokens to the prompt: it was dropped", "not supported")
    return None


def score_position(shape: str, said: str, cell: tuple[int, int]) -> Position:
    """Compare what was said with the (row, column) that is right."""
    last = spoken(said).strip()
    return Position(shape, last == f"{cell[0]},{cell[1]}", cell_said(last) == cell, said[:200])


_CARDINALS = {"1": 1, "2": 2, "3": 3, "one": 1, "two": 2, "three": 3}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "1st": 1, "2nd": 2, "3rd": 3}


def cell_said(said: str) -> tuple[int, int] | None:
    """The (row, column) that words or numbers name; None where they name none, several, or count from elsewhere."""
    said = said.lower()
    words = set(re.findall(r"[a-z]+", said))
    if "not" in words or "from the right" in said or "from the bottom" in said:
        return None
    row, column = _labelled("row", said), _labelled("column", said)
    if row and column:
        return row, column
    numbers = re.findall(r"\d+", said)
    if numbers:
        pair = len(numbers) == 2 and not words & {"row", "rows", "column", "columns"}
        return (int(numbers[0]), int(numbers[1])) if pair else None
    centre = bool(words & {"middle", "centre", "center", "central"})
    row = _side(bool(words & {"top", "upper"}), bool(words & {"bottom", "lower"}), centre)
    column = _side("left" in words, "right" in words, centre)
    return (row, column) if row and column else None


def _labelled(label: str, said: str) -> int | None:
    """The number that `label` carries: "row 2", "row is 2", "second row". None where it carries two."""
    found = {
        _CARDINALS[word] for word in re.findall(rf"\b{label}[\s:=]+(?:is |number )?({'|'.join(_CARDINALS)})\b", said)
    }
    found |= {_ORDINALS[word] for word in re.findall(rf"\b({'|'.join(_ORDINALS)})\s+{label}\b", said)}
    return found.pop() if len(found) == 1 else None


def _side(low: bool, high: bool, centre: bool) -> int | None:
    if low and high:
        return None
    return 1 if low else GRID if high else 2 if centre else None
