"""The few metrics that the page shows, out of the text that a Prometheus endpoint answers."""

from __future__ import annotations

import re

# Optional timestamp at the end, labels in braces with escaped quotes.
SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)(?:\s+-?\d+)?$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = list[tuple[str, dict[str, str], float]]


def parse(text: str) -> Samples:
    """Every sample as name, labels, value. Raises ValueError with the first line that is none."""
    samples: Samples = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = SAMPLE.match(line.strip())
        try:
            if match is None:
                raise ValueError("no sample")
            samples.append((match[1], dict(LABEL.findall(match[2] or "")), float(match[3])))
        except ValueError:
            raise ValueError(f"not a Prometheus sample: {line[:120]!r}") from None
    return samples


def total(samples: Samples, name: str, **labels: str) -> float | None:
    """Sum over all series of a metric with these labels; None where there is none."""
    found = [value for known, have, value in samples if known == name and labels.items() <= have.items()]
    return sum(found) if found else None


def mean(samples: Samples, name: str) -> float | None:
    """Mean over the series of a gauge; None where there is none."""
    found = [value for known, _, value in samples if known == name]
    return sum(found) / len(found) if found else None


def view(samples: Samples, before: Samples | None, seconds: float) -> dict[str, float | None]:
    """What the page shows; rates need the sample before. None is "the server does not say", never 0."""

    def rate(name: str) -> float | None:
        now, then = total(samples, name), total(before, name) if before is not None else None
        if now is None or then is None or seconds <= 0 or now < then:  # smaller: the server was restarted
            return None
        return (now - then) / seconds

    def cached(source: str) -> float | None:
        """A source that was never used has no series; it is 0 once any source has one."""
        found = total(samples, "sglang:cached_tokens_total", cache_source=source)
        return found if found is not None or total(samples, "sglang:cached_tokens_total") is None else 0.0

    # A request is counted under its sources, or under "total" where it has no details: never under both.
    prompt, hits = total(samples, "sglang:prompt_tokens_total"), total(samples, "sglang:cached_tokens_total")
    length, accepted = mean(samples, "sglang:spec_accept_length"), mean(samples, "sglang:spec_accept_rate")
    # A round makes at least one token: without a round, or without speculation, the gauges stand at 0.
    if length is None or length < 1:
        length = accepted = None
    # Both are of one interval, the rate over the drafts that its rounds really verified, so this is their number.
    proposed = (length - 1) / accepted if length and accepted else None
    rounds = rate("sglang:spec_verify_calls_total")
    return {
        "accept_length": length,
        "accept_rate": accepted,
        "draft_rows": mean(samples, "sglang:spec_num_draft_tokens") or None,
        "proposed": proposed,
        "proposed_rate": None if proposed is None or rounds is None else proposed * rounds,
        "verify_rounds": rounds,
        "device_tokens": cached("device"),
        "restored_host": cached("host"),
        "restored_storage": cached("storage"),
        "recomputed": None if prompt is None else prompt - (hits or 0.0),
        "generated": rate("sglang:generation_tokens_total"),
    }
