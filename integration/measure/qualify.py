"""`sm120 qualify`: run the plan, keep everything that went over the wire, write one result."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sm120.integration.build.runtime_record import FILE as RECORD
from sm120.integration.common.gpus import gpus, visible
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.cases import Needle, ToolScore, measure_needles, measure_tools
from sm120.integration.measure.decode import Decode, measure_decode
from sm120.integration.measure.effort import DEFAULT, Effort, measure_efforts
from sm120.integration.measure.endpoint import Endpoint, NotAnswered
from sm120.integration.measure.overlap import TraceRates, trace_rates
from sm120.integration.measure.prefill import Timing, measure_prefill, measure_restore, measure_restores
from sm120.integration.measure.requests import SENTENCE, Limits, Plan, fit
from sm120.integration.measure.result import UNITS, Conditions, Measurement, Result
from sm120.integration.measure.texts import text
from sm120.integration.measure.trace import Trace, load_trace, prompts, replay
from sm120.integration.measure.vision import Vision, measure_vision
from sm120.integration.serve.preflight import taken_gpu, visible_to
from sm120.integration.serve.profile import Profile


def qualify(
    endpoint: Endpoint,
    plan: Plan,
    folder: Path,
    *,
    name: str,
    conditions: Conditions,
    runtime: Path | None = None,
    trace: Trace | None = None,
    context: int | None = None,
    here: dict[str, Any] | None = None,
    say: Callable[[str], None] = print,
) -> Result:
    """Measure `endpoint` and write result.json, device.json and runtime.json into `folder`.

    A measurement that fails is in the result with its reason and no number. `name` seeds the texts, so that no run
    meets the cache of another. Sizes that the endpoint does not take, or that are beyond `context` tokens, become
    smaller, and the conditions' note says so. `here` is what `device` told of the profile that is served.

    Raises:
        Refusal: `qualify-name`, before anything is asked.
    """
    identifier = run_id(name)
    (folder / "device.json").write_text(json.dumps(here or device(), indent=1) + "\n")
    if runtime is not None and (runtime / RECORD).is_file():
        shutil.copyfile(runtime / RECORD, folder / RECORD)
    measurements: list[Measurement] = []
    # The first request of a server pays for what it does once; it is sent and not measured.
    sample = text(f"{name} warm up", 1500)
    try:
        sampled = endpoint.complete(sample, 4).prompt_tokens
    except NotAnswered as error:
        sampled = None
        say(f"warm-up: {error}")
    trace = trace or load_trace()
    limits = Limits(
        context=min(filter(None, (context, endpoint.context_length())), default=None),
        pool=endpoint.pool_tokens(),
        characters_per_token=len(sample) / sampled if sampled else 1.0,
    )
    plan, cut = fit(plan, limits, trace_answer=max(turn.new_tokens for turn in trace.turns))
    if cut:
        at_once = f", {limits.pool:,} at once" if limits.pool else ""
        longest = f"{limits.context:,}" if limits.context else "unknown"
        note = f"cut to the endpoint's limits ({longest} tokens a request{at_once}): {'; '.join(cut)}"
        say(note)
        conditions = conditions.model_copy(update={"note": "; ".join(filter(None, (conditions.note, note)))})
    for size in plan.prefill:
        say(f"prefill, {size:,} characters")
        measure = partial(measure_prefill, endpoint, size, seed=f"{name} {size}", repeats=plan.repeats)
        measurements += _timed(("cold prefill", "radix reuse"), measure)
    say("storage restore")
    measurements += _timed(("storage restore",), lambda: [measure_restore(endpoint, plan.restore, seed=name)])
    streams = max(plan.concurrency)
    say(f"concurrent storage restore, {streams} at once")
    together = partial(measure_restores, endpoint, streams, plan.restore // streams, seed=f"{name} C{streams}")
    measurements += [
        one.model_copy(update={"concurrency": streams})
        for one in _timed(("concurrent storage restore",), lambda: [together()])
    ]
    for concurrency in plan.concurrency:
        say(f"decode, C{concurrency}")
        measured = measure_decode(
            endpoint,
            concurrency,
            seed=f"{name} C{concurrency}",
            characters=plan.decode_context,
            tokens=plan.decode_tokens,
        )
        measurements += of_decode(measured)
    for length in plan.needles:
        if length is None:
            measurements.append(_refused("needles", "longest text: the endpoint does not say how long its context is"))
            continue
        say(f"needles, {length:,} characters")
        measurements.append(of_needles(measure_needles(endpoint, length, seed=f"{name} {length}", depths=plan.depths)))
    say("tool calls")
    measurements += of_tools(measure_tools(endpoint))
    if plan.efforts:
        say(f"reasoning effort: {', '.join(plan.efforts)}")
        measurements += of_efforts(measure_efforts(endpoint, plan.efforts, plan.effort_tokens))
    if plan.pictures:
        say("positions in pictures")
        seen = [measure_vision(endpoint, seed=f"{name} {number}") for number in range(plan.pictures)]
        measurements += of_vision(seen)
    for concurrency in plan.trace_concurrency:
        say(f"trace, {concurrency} sessions at once")
        most = limits.room(max(turn.new_tokens for turn in trace.turns), concurrency)
        measurements += _traced(endpoint, trace, plan.trace_characters, concurrency, name, most)
    result = Result(
        schema="sm120-result-1",
        id=identifier,
        source="measured here",
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        conditions=conditions,
        measurements=measurements,
    )
    (folder / "result.json").write_text(result.as_json())
    return result


def run_id(name: str) -> str:
    """The id of a run's result. Raises Refusal `qualify-name` for a name that gives none or is no folder's name."""
    found = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.")
    if not found or "/" in name:
        raise Refusal("qualify-name", f"name is {name!r}, needs a letter or digit of a to z, 0 to 9, and no slash")
    return found


def _timed(kinds: tuple[str, ...], measure: Callable[[], list[Timing]]) -> list[Measurement]:
    try:
        return [of_timing(timing) for timing in measure()]
    except NotAnswered as error:
        return [_refused(kind, str(error)) for kind in kinds]


def _refused(kind: str, reason: str, **rest: Any) -> Measurement:
    return Measurement(kind=kind, value=None, unit=UNITS[kind], refused=reason, **rest)  # type: ignore[arg-type]


def of_timing(timing: Timing) -> Measurement:
    """Cold prefill carries a rate; reuse and restore carry seconds, and a refusal carries neither."""
    if timing.refused:
        return _refused(timing.kind, timing.refused, context_tokens=timing.tokens)
    seconds = sorted(timing.seconds)
    if timing.kind == "cold prefill":
        assert timing.tokens is not None
        values = [round(timing.tokens / each, 3) for each in timing.seconds]
        return Measurement(
            kind="cold prefill", value=timing.rate, unit="tok/s", context_tokens=timing.tokens, values=values
        )
    if timing.kind == "concurrent storage restore":
        note = f"in {seconds[-1]:.3f} s from the first send to the last first token"
        return Measurement(kind="concurrent storage restore", value=timing.tokens, unit="tokens", note=note)
    restored = timing.tokens if timing.kind == "storage restore" else None
    return Measurement(
        kind=timing.kind,  # type: ignore[arg-type]
        value=seconds[len(seconds) // 2],
        unit="s",
        context_tokens=timing.tokens,
        restored_tokens=restored,
        values=timing.seconds,
    )


def of_decode(decode: Decode) -> list[Measurement]:
    """Both ways to count, each under its own name."""
    rest: dict[str, Any] = {
        "concurrency": decode.concurrency,
        "context_tokens": decode.context,
        "new_tokens": decode.tokens,
    }
    if decode.refused:
        return [_refused(kind, decode.refused, **rest) for kind in ("decode per stream", "decode makespan")]
    return [
        Measurement(kind="decode per stream", value=decode.per_stream, unit="tok/s", values=decode.streams, **rest),
        Measurement(kind="decode makespan", value=decode.makespan, unit="tok/s", **rest),
    ]


def of_needles(needles: list[Needle]) -> Measurement:
    """Share of needles found; one that was not answered leaves no score at all."""
    bad = [needle.refused for needle in needles if needle.refused]
    tokens = [needle.tokens for needle in needles if needle.tokens is not None]
    context = tokens[0] if tokens else None
    if bad or not needles:
        return _refused("needles", bad[0] or "nothing asked" if bad else "nothing asked", context_tokens=context)
    found = sum(bool(needle.found) for needle in needles)
    note = "; ".join(f"depth {needle.depth:g}: {'found' if needle.found else 'not found'}" for needle in needles)
    return Measurement(kind="needles", value=found / len(needles), unit="share", context_tokens=context, note=note)


def of_tools(scores: list[ToolScore]) -> list[Measurement]:
    """Exact and semantic shares apart; a case that was not answered leaves no score."""
    bad = [score.refused for score in scores if score.refused]
    if bad or not scores:
        reason = str(bad[0]) if bad else "nothing asked"
        return [_refused(kind, reason) for kind in ("tool calls exact", "tool calls semantic")]
    note = "; ".join(f"{score.case}: {'exact' if score.exact else 'semantic' if score.semantic else 'wrong'}"
                     for score in scores)  # fmt: skip
    count = len(scores)
    return [
        Measurement(kind="tool calls exact", value=sum(bool(score.exact) for score in scores) / count, unit="share",
                    note=note),
        Measurement(kind="tool calls semantic", value=sum(bool(score.semantic) for score in scores) / count,
                    unit="share", note=note),
    ]  # fmt: skip


def of_efforts(efforts: list[Effort]) -> list[Measurement]:
    """Score, tokens and time of each level, each under the level's name."""
    plain = next((one for one in efforts if one.level == DEFAULT), None)
    found: list[Measurement] = []
    for one in efforts:
        rest: dict[str, Any] = {"effort": one.level, "new_tokens": one.budget}
        unheeded = ""
        if plain and one is not plain and _as_long(one, plain):
            unheeded = "; prompts as long as without a level: the chat template shows no switch for it"
        if one.reason:
            found += [
                _refused(kind, one.reason + unheeded, outcome=one.outcome, **rest)
                for kind in ("reasoning score", "reasoning tokens", "reasoning time")
            ]
            continue
        note = "; ".join(f"{case}: {'right' if right else 'wrong'}" for case, right in one.right.items()) + unheeded
        share = sum(one.right.values()) / len(one.right)
        found.append(Measurement(kind="reasoning score", value=share, unit="share", note=note, **rest))
        tokens = [float(answer.completion_tokens) for answer in one.answers if answer.completion_tokens is not None]
        if len(tokens) == len(one.answers):
            value = statistics.median(tokens)
            found.append(Measurement(kind="reasoning tokens", value=value, unit="tokens", values=tokens, **rest))
        else:
            found.append(_refused("reasoning tokens", "the endpoint does not say how many tokens it made", **rest))
        seconds = [answer.last - answer.sent for answer in one.answers]
        value = statistics.median(seconds)
        found.append(Measurement(kind="reasoning time", value=value, unit="s", values=seconds, **rest))
    return found


def _as_long(one: Effort, plain: Effort) -> bool:
    """Whether the prompts of a level are as long as those of the same questions without one, as far as both went."""
    pairs = list(zip(one.answers, plain.answers, strict=False))
    return bool(pairs) and all(a.prompt_tokens is not None and a.prompt_tokens == b.prompt_tokens for a, b in pairs)


def of_vision(pictures: list[Vision]) -> list[Measurement]:
    """Exact and semantic shares over all pictures; one picture without a score leaves none."""
    kinds = ("vision positions exact", "vision positions semantic")
    bad = next((one for one in pictures if one.reason), None)
    if bad:
        return [_refused(kind, str(bad.reason), outcome=bad.outcome) for kind in kinds]
    positions = [position for one in pictures for position in one.positions]
    if not positions:
        return [_refused(kind, "nothing asked") for kind in kinds]
    note = "; ".join(f"{one.shape}: {'exact' if one.exact else 'semantic' if one.semantic else 'wrong'}"
                     for one in positions)  # fmt: skip
    exact, semantic = (sum(right) / len(positions) for right in (
        [one.exact for one in positions], [one.semantic for one in positions]))  # fmt: skip
    return [
        Measurement(kind="vision positions exact", value=exact, unit="share", note=note),
        Measurement(kind="vision positions semantic", value=semantic, unit="share", note=note),
    ]


def _traced(
    endpoint: Endpoint, trace: Trace, characters: int, concurrency: int, name: str, most: int | None
) -> list[Measurement]:
    rest: dict[str, Any] = {
        "concurrency": concurrency,
        "trace": f"{trace.name} {trace.digest} {characters:,} characters",
    }
    # Nothing of a trace can be left out: what was recorded is the least that it takes.
    least = len(prompts(trace, 1, seed=f"{name} C{concurrency}", session=0)[-1])
    if most is not None and least > most + SENTENCE:
        reason = f"the trace has {least:,} characters at least, {most + SENTENCE:,} fit"
        return [_refused(kind, reason, **rest) for kind in TRACE_KINDS]
    try:
        told = replay(endpoint, trace, concurrency, characters, seed=f"{name} C{concurrency}")
    except NotAnswered as error:
        return [_refused(kind, str(error), **rest) for kind in TRACE_KINDS]
    return of_trace(trace_rates(told), rest)


TRACE_KINDS = ("trace decode per stream", "trace decode in band", "trace makespan")


def of_trace(rates: TraceRates, rest: dict[str, Any]) -> list[Measurement]:
    """Per stream by band and overlap, together by band, and the whole replay. `rest` names trace and concurrency."""
    if rates.refused or rates.makespan is None:
        return [_refused(kind, rates.refused or "nothing was asked", **rest) for kind in TRACE_KINDS]
    found = [
        Measurement(
            kind="trace decode per stream", value=statistics.median(one.rates), unit="tok/s", values=one.rates,
            context_tokens=one.context, context_band=one.band, overlap=one.overlap, **rest,
        )
        for one in rates.streams
    ]  # fmt: skip
    found += [
        Measurement(
            kind="trace decode in band", value=band.rate, unit="tok/s", context_tokens=band.context,
            context_band=band.band, note=f"requests: {band.requests}, at a time: {band.mean_overlap:.2f}", **rest,
        )
        for band in rates.bands
    ]  # fmt: skip
    cached = "not reported" if rates.cached_tokens is None else f"{rates.cached_tokens:,}"
    note = f"cached prompt tokens: {cached} of {rates.prompt_tokens:,}"
    found.append(
        Measurement(
            kind="trace makespan", value=rates.makespan, unit="tok/s", new_tokens=rates.tokens, note=note, **rest
        )
    )
    return found


def device(profile: Profile | None = None) -> dict[str, Any]:
    """The device that a server of `profile` takes here (without a profile, the first visible one), its clocks and power
    limits as the driver tells them; the CPU where there is none.
    """
    if profile is None:
        found = visible(gpus() or [], os.environ)
        taken = found[0] if found else None
    else:
        taken = taken_gpu(profile, visible_to(profile))
    if taken is None:
        return {"device": f"CPU, {platform.processor() or platform.machine()}", "power_limit_w": None}
    told: dict[str, Any] = {"device": taken.name, "capability": taken.capability}
    names = ["power.limit", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu"]
    try:
        lines = subprocess.run(
            ["nvidia-smi", f"--query-gpu=uuid,{','.join(names)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=30, check=True,
        ).stdout.splitlines()  # fmt: skip
        rows = [[value.strip() for value in line.split(",")] for line in lines]
        values = next(row[1:] for row in rows if row[0] == taken.uuid)
        told |= {"driver": taken.driver, "power_limit_w": float(values[0]), **dict(zip(names, values, strict=True))}
    except (OSError, subprocess.SubprocessError, StopIteration, IndexError, ValueError):
        return {**told, "power_limit_w": None}
    return told
