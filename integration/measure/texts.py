"""Original texts from a seed: no two share a beginning, and none can be in a training set or a cache by accident."""

from __future__ import annotations

import random

PEOPLE = (
    "the ferry pilot",
    "a clock mender",
    "the night baker",
    "our botanist",
    "a retired surveyor",
    "the bell ringer",
)
DEEDS = ("counted", "painted", "misplaced", "weighed", "described", "mended", "borrowed", "sorted")
THINGS = ("copper lanterns", "wet maps", "glass floats", "seed drawers", "iron hinges", "paper boats", "salt jars")
PLACES = ("below the weir", "behind the chapel", "on the third landing", "near the tide gauge", "under the long table")


def sentence(source: random.Random) -> str:
    """One sentence; numbers make repeats rare."""
    return (
        f"On day {source.randrange(10**6)} {source.choice(PEOPLE)} {source.choice(DEEDS)} {source.randrange(2, 999)} "
        f"{source.choice(THINGS)} {source.choice(PLACES)}. "
    )


def text(seed: str, characters: int) -> str:
    """At least `characters` characters; the first sentence differs with the seed."""
    source = random.Random(f"qualify {seed}")
    parts: list[str] = []
    size = 0
    while size < characters:
        parts.append(sentence(source))
        size += len(parts[-1])
    return "".join(parts)


def needle_text(seed: str, characters: int, depth: float) -> tuple[str, str]:
    """A text with one sentence about a number at `depth` (0 start, 1 end), the question at its end, and the number."""
    if not 0 <= depth <= 1:
        raise ValueError(f"depth is {depth}, needs to be within 0 and 1")
    number = str(random.Random(f"needle {seed}").randrange(10**6, 10**7))
    hay = text(seed, characters)
    cut = hay.find(". ", int(len(hay) * depth))
    cut = len(hay) if cut < 0 else cut + 2
    needle = f"The number engraved on the harbour bell is {number}. "
    question = "\nQuestion: which number is engraved on the harbour bell?\nAnswer: the number is"
    return f"{hay[:cut]}{needle}{hay[cut:]}{question}", number
