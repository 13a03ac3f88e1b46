"""Decoding at a concurrency, both ways: per stream after its first token, and together over the synchronised makespan."""

from __future__ import annotations

import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sm120.integration.measure.endpoint import Answer, Endpoint, NotAnswered
from sm120.integration.measure.texts import text


@dataclass(frozen=True)
class Decode:
    """`per_stream` is the median over streams, `makespan` of all tokens over first send to last token; tokens/s."""

    concurrency: int
    context: int | None
    tokens: int
    per_stream: float | None
    streams: list[float]
    makespan: float | None
    refused: str | None = None


def measure_decode(endpoint: Endpoint, concurrency: int, *, seed: str, characters: int, tokens: int) -> Decode:
    """`concurrency` different prompts sent at one moment, each decoding exactly `tokens` tokens."""
    barrier = threading.Barrier(concurrency)

    def one(number: int) -> Answer:
        barrier.wait(60)
        return endpoint.complete(text(f"{seed} decode {number}", characters), tokens, ignore_eos=True)

    try:
        with ThreadPoolExecutor(concurrency) as pool:
            answers = list(pool.map(one, range(concurrency)))
    except NotAnswered as error:
        return Decode(concurrency, None, tokens, None, [], None, str(error))
    return decode_rates(answers, tokens)


def decode_rates(answers: list[Answer], tokens: int) -> Decode:
    """Rates of streams that ran together; refused where one stopped early or does not say how much it made."""
    known = [answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]
    context = int(statistics.median(known)) if known else None
    refused = Decode(len(answers), context, tokens, None, [], None)
    short = [answer.completion_tokens for answer in answers if answer.completion_tokens != tokens]
    if short:
        return _because(refused, f"a stream made {short[0]} of {tokens} tokens")
    streams = []
    for answer in answers:
        # With speculation the first event carries several tokens; without a count in it, one is assumed.
        after_first = tokens - (answer.first_tokens or 1)
        span = answer.last - answer.first
        if after_first < 1 or span <= 0:
            return _because(refused, "a stream came as one piece: nothing after its first token to time")
        streams.append(after_first / span)
    span = max(answer.last for answer in answers) - min(answer.sent for answer in answers)
    return Decode(len(answers), context, tokens, statistics.median(streams), streams, tokens * len(answers) / span)


def _because(decode: Decode, reason: str) -> Decode:
    return Decode(decode.concurrency, decode.context, decode.tokens, None, [], None, reason)
