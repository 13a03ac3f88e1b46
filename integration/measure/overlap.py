"""Decode rates of requests that ran across each other: by context band, and by what ran beside them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from sm120.integration.measure.endpoint import Answer
from sm120.integration.measure.trace import Told

Overlap = Literal["alone", "others decoding", "others prefilling"]
Band = tuple[int, int]


@dataclass(frozen=True)
class Streams:
    """Requests of one band and one kind of overlap: tokens/s of each after its first token."""

    band: Band
    overlap: Overlap
    context: int
    rates: list[float]


@dataclass(frozen=True)
class BandRate:
    """All requests of one band: their tokens over the time in which at least one of them decoded."""

    band: Band
    context: int
    rate: float
    requests: int
    mean_overlap: float


@dataclass(frozen=True)
class TraceRates:
    """`makespan` is of all tokens over first send to last token. With `refused` there is no number at all."""

    streams: list[Streams]
    bands: list[BandRate]
    makespan: float | None
    tokens: int
    prompt_tokens: int
    cached_tokens: int | None
    refused: str | None = None


def band_of(tokens: int) -> Band:
    """The band of a context, its end outside: below 1,024, then every factor of four."""
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}, must not be negative")
    low, high = 0, 1024
    while tokens >= high:
        low, high = high, 4 * high
    return low, high


def overlap_of(one: Answer, others: list[Answer]) -> Overlap:
    """What ran while `one` decoded. A prefill beside it weighs more than any decoding; touching ends do not overlap."""

    def beside(start: float, end: float) -> bool:
        return start < one.last and end > one.first

    if any(beside(other.sent, other.first) for other in others):
        return "others prefilling"
    if any(beside(other.first, other.last) for other in others):
        return "others decoding"
    return "alone"


def union_seconds(spans: list[tuple[float, float]]) -> float:
    """Length of the time that at least one span covers; what several cover counts once."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def trace_rates(told: list[Told]) -> TraceRates:
    """Rates of one replay; refused as a whole where one request cannot be timed, for it ran beside all the others."""
    answers = [one.answer for one in told]
    reason = next(filter(None, map(_cannot_time, told)), None) if told else "nothing was asked"
    if reason:
        return TraceRates([], [], None, 0, 0, None, reason)
    by_band: dict[Band, list[Told]] = defaultdict(list)
    by_kind: dict[tuple[Band, Overlap], list[Told]] = defaultdict(list)
    for one in told:
        band = band_of(_context(one))
        others = [answer for answer in answers if answer is not one.answer]
        by_band[band].append(one)
        by_kind[band, overlap_of(one.answer, others)].append(one)
    streams = [
        Streams(band, overlap, _middle(group), [_after_first(one) / _span(one) for one in group])
        for (band, overlap), group in sorted(by_kind.items())
    ]
    bands = []
    for band, group in sorted(by_band.items()):
        busy = union_seconds([(one.answer.first, one.answer.last) for one in group])
        rate, depth = sum(map(_after_first, group)) / busy, sum(map(_span, group)) / busy
        bands.append(BandRate(band, _middle(group), rate, len(group), depth))
    tokens = sum(one.asked for one in told)
    makespan = tokens / (max(answer.last for answer in answers) - min(answer.sent for answer in answers))
    cached = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    return TraceRates(
        streams, bands, makespan, tokens, sum(map(_context, told)), sum(cached) if len(cached) == len(told) else None
    )


def _cannot_time(one: Told) -> str | None:
    answer, where = one.answer, f"session {one.session} turn {one.turn}"
    if answer.prompt_tokens is None:
        return f"{where}: the endpoint does not report prompt tokens, so the request has no band"
    if answer.completion_tokens != one.asked:
        return f"{where} made {answer.completion_tokens} of {one.asked} tokens"
    if _after_first(one) < 1 or _span(one) <= 0:
        return f"{where} came as one piece: nothing after its first token to time"
    return None


def _context(one: Told) -> int:
    return one.answer.prompt_tokens or 0


def _after_first(one: Told) -> int:
    # With speculation the first event carries several tokens; without a count in it, one is assumed.
    return one.asked - (one.answer.first_tokens or 1)


def _span(one: Told) -> float:
    return one.answer.last - one.answer.first


def _middle(group: list[Told]) -> int:
    return int(statistics.median(map(_context, group)))
