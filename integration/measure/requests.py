"""What a plan asks, and how it is cut to what an endpoint takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sm120.integration.measure.effort import LEVELS


@dataclass(frozen=True)
class Plan:
    """Sizes in characters of text: how many tokens they are, the endpoint says.

    What is empty is not asked: no levels of effort, no pictures, no sessions of a trace. A needle size of None is the
    longest text that the endpoint takes.
    """

    prefill: tuple[int, ...]
    restore: int
    decode_context: int
    decode_tokens: int
    concurrency: tuple[int, ...]
    needles: tuple[int | None, ...]
    depths: tuple[float, ...]
    repeats: int
    efforts: tuple[str, ...] = ()
    effort_tokens: int = 512
    pictures: int = 0
    trace_characters: int = 3000
    trace_concurrency: tuple[int, ...] = ()


# Four sessions of `full` are about 530K tokens together, within the pools of both profiles.
# About 4.5 characters a token with a large vocabulary, one with bytes: `quick` fits a context of 8,192 either way.
PLANS = {
    "quick": Plan(
        (1500, 4000),
        3000,
        600,
        48,
        (1, 4),
        (1500, 5000),
        (0.1, 0.9),
        3,
        efforts=("default", "none", "high"),
        effort_tokens=512,
        pictures=1,
        trace_characters=3000,
        trace_concurrency=(1, 2),
    ),
    "full": Plan(
        (18_000, 295_000, 2_200_000),
        2_200_000,
        9_000,
        512,
        (1, 4),
        (295_000, 2_200_000, None),
        (0.1, 0.5, 0.9),
        3,
        efforts=tuple(LEVELS),
        effort_tokens=16_384,
        pictures=4,
        trace_characters=600_000,
        trace_concurrency=(1, 4),
    ),
}


# The longest sentence of a text, and a needle with its question, in characters.
SENTENCE, NEEDLE = 130, 200
# No answer is longer than this part of the context: an eighth.
ANSWER = 8


@dataclass(frozen=True)
class Limits:
    """`context` is of one request, prompt and answer; `pool` of all at once. In tokens; None is "not said"."""

    context: int | None
    pool: int | None
    characters_per_token: float

    def room(self, answer: int, together: int = 1) -> int | None:
        """Characters that fit beside an answer of `answer` tokens when `together` such requests run at once."""
        known = [limit for limit in (self.context, self.pool // together if self.pool else None) if limit]
        if not known:
            return None
        # The ratio is that of one sample: a fiftieth stays free. A text ends with the sentence that reaches its size.
        return max(1, int((min(known) - answer) * self.characters_per_token * 0.98) - SENTENCE)


def fit(plan: Plan, limits: Limits, *, trace_answer: int = 0) -> tuple[Plan, list[str]]:
    """The plan with every size that the endpoint cannot take made smaller, and one line for each that was.

    `trace_answer` is the longest answer of the trace, in tokens. Sizes that fit stay as they are; in place of larger
    ones there is one as large as fits, and where none fits, a sixteenth and a quarter of it too: a curve needs points.
    """
    notes: list[str] = []

    def said(what: str, old: object, new: object) -> None:
        if old != new:
            notes.append(f"{what}: {old} became {new}".replace("(", "").replace(",)", "").replace(")", ""))

    prefill = _sizes(plan.prefill, limits.room(1))
    said("prefill characters", plan.prefill, prefill)
    restore = _most(plan.restore, limits.room(1))
    said("restore characters", plan.restore, restore)
    most = limits.room(16)
    asked = tuple(size for size in plan.needles if size is not None)
    needles: tuple[int | None, ...] = _sizes(asked, None if most is None else max(1, most - NEEDLE))
    said("needle characters", asked, needles)
    if None in plan.needles:
        longest = None if limits.context is None or most is None else max(1, most - NEEDLE)
        if longest not in needles:
            needles = (*needles, longest)
    streams = max(plan.concurrency, default=1)
    tokens = plan.decode_tokens
    if limits.context:
        tokens = max(2, min(tokens, limits.context // ANSWER))
    said("decoded tokens", plan.decode_tokens, tokens)
    context = _most(plan.decode_context, limits.room(tokens, streams))
    said("characters before decoding", plan.decode_context, context)
    budget = plan.effort_tokens
    if plan.efforts and limits.context:
        budget = max(1, min(budget, limits.context // ANSWER))
    said("tokens of a level of effort", plan.effort_tokens, budget)
    sessions = max(plan.trace_concurrency, default=1)
    characters = _most(plan.trace_characters, limits.room(trace_answer, sessions))
    if plan.trace_concurrency:
        said("trace characters", plan.trace_characters, characters)
    cut = replace(
        plan,
        prefill=prefill,
        restore=restore,
        needles=needles,
        decode_tokens=tokens,
        decode_context=context,
        effort_tokens=budget,
        trace_characters=characters,
    )
    return cut, notes


def _most(size: int, most: int | None) -> int:
    return size if most is None else min(size, most)


def _sizes(sizes: tuple[int, ...], most: int | None) -> tuple[int, ...]:
    if most is None or all(size <= most for size in sizes):
        return sizes
    kept = [size for size in sizes if size <= most] or [max(1, most // 16), max(1, most // 4)]
    return tuple(sorted({*kept, most}))
