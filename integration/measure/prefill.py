"""Cold prefill, radix reuse and storage restore: three measurements that never share a number."""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sm120.integration.measure.endpoint import Answer, Endpoint
from sm120.integration.measure.texts import text


@dataclass(frozen=True)
class Timing:
    """One measurement, or why there is none. `rate` is tokens per second; which tokens, `kind` says."""

    kind: str
    tokens: int | None
    seconds: list[float]
    rate: float | None
    refused: str | None = None


def cannot_tell(probe: Answer, repeat: Answer) -> str | None:
    """Why this endpoint cannot tell cold from cached; None when it shows that it can.

    It must report cached tokens, report none for a text it never saw, and some for the same text again: one that
    answers 0 every time reports nothing.
    """
    if probe.cached_tokens is None or repeat.cached_tokens is None:
        return "the endpoint does not report cached tokens (SGLang: --enable-cache-report)"
    if repeat.cached_tokens == 0:
        return "the same prompt again is reported as not cached: the report is void, or there is no prefix cache"
    if probe.prompt_tokens is not None and probe.cached_tokens > probe.prompt_tokens // 2:
        return "a text that was never sent before is reported as cached"
    return None


def measure_prefill(endpoint: Endpoint, characters: int, *, seed: str, repeats: int = 3) -> list[Timing]:
    """Cold prefill and radix reuse over `repeats` different texts of about `characters` characters."""
    colds: list[Answer] = []
    hits: list[Answer] = []
    for number in range(repeats):
        prompt = text(f"{seed} prefill {number}", characters)
        colds.append(endpoint.complete(prompt, 1))
        hits.append(endpoint.complete(prompt, 1))
    reason = cannot_tell(colds[0], hits[0])
    return [cold_timing(colds, reason), reuse_timing(hits, reason)]


def cold_timing(answers: list[Answer], reason: str | None) -> Timing:
    """Prompt tokens per second to the first token, only where every answer is known to be cold."""
    seconds = [answer.seconds_to_first for answer in answers]
    warm = [answer.cache_state for answer in answers if answer.cache_state != "cold"]
    if reason is None and warm:
        reason = f"{len(warm)} of {len(answers)} prompts were not cold: {warm[0]}"
    tokens = _tokens(answers)
    if reason is None and tokens is None:
        reason = "the endpoint does not report prompt tokens"
    if reason is not None or tokens is None:
        return Timing("cold prefill", tokens, seconds, None, reason)
    rates = [(answer.prompt_tokens or 0) / answer.seconds_to_first for answer in answers]
    return Timing("cold prefill", tokens, seconds, statistics.median(rates))


def reuse_timing(answers: list[Answer], reason: str | None) -> Timing:
    """Seconds to the first token of a prompt whose prefix is on the device; never a rate of prefill."""
    seconds = [answer.seconds_to_first for answer in answers]
    other = [answer.cache_state for answer in answers if answer.cache_state not in ("device", "cached, tier unknown")]
    if reason is None and other:
        reason = f"{len(other)} of {len(answers)} repeats did not come from the device: {other[0]}"
    return Timing("radix reuse", _tokens(answers), seconds, None, reason)


def measure_restore(endpoint: Endpoint, characters: int, *, seed: str, settle: float = 3.0) -> Timing:
    """Seconds to the first token of a prompt that only storage still holds: send, let it be written, flush, send."""
    kind = "storage restore"
    prompt = text(f"{seed} restore", characters)
    endpoint.complete(prompt, 1)
    time.sleep(settle)
    if not endpoint.flush():
        return Timing(
            kind, None, [], None, "the endpoint cannot drop its device and host caches (SGLang: /flush_cache)"
        )
    return restore_timing(endpoint.complete(prompt, 1))


def restore_timing(answer: Answer) -> Timing:
    """Only an answer whose cached tokens all came from storage is a restore."""
    kind, state = "storage restore", answer.cache_state
    tokens = (answer.tiers or {}).get("storage")
    if state != "storage":
        return Timing(kind, None, [answer.seconds_to_first], None, f"the prefix came from: {state}")
    return Timing(kind, tokens, [answer.seconds_to_first], None)


def measure_restores(endpoint: Endpoint, count: int, characters: int, *, seed: str, settle: float = 3.0) -> Timing:
    """`count` prompts that only storage still holds, asked for at one moment; seconds until all have a first token."""
    kind = "concurrent storage restore"
    prompts = [text(f"{seed} restore {number}", characters) for number in range(count)]
    for prompt in prompts:
        endpoint.complete(prompt, 1)
    time.sleep(settle)
    if not endpoint.flush():
        return Timing(
            kind, None, [], None, "the endpoint cannot drop its device and host caches (SGLang: /flush_cache)"
        )
    barrier = threading.Barrier(count)

    def one(prompt: str) -> Answer:
        barrier.wait(60)
        return endpoint.complete(prompt, 1)

    with ThreadPoolExecutor(count) as pool:
        return restores_timing(list(pool.map(one, prompts)))


def restores_timing(answers: list[Answer]) -> Timing:
    """Tokens of all restores and the span from the first send to the last first token; one that was none spoils it."""
    kind = "concurrent storage restore"
    span = max(answer.first for answer in answers) - min(answer.sent for answer in answers)
    other = [answer.cache_state for answer in answers if answer.cache_state != "storage"]
    if other:
        return Timing(kind, None, [span], None, f"{len(other)} of {len(answers)} prefixes came from: {other[0]}")
    return Timing(kind, sum((answer.tiers or {}).get("storage", 0) for answer in answers), [span], None)


def _tokens(answers: list[Answer]) -> int | None:
    counts = [answer.prompt_tokens for answer in answers]
    known = [count for count in counts if count is not None]
    return int(statistics.median(known)) if len(known) == len(counts) and known else None
