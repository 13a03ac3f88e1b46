"""Subtract what is alike; name what is not."""

from __future__ import annotations

from dataclasses import dataclass

from sm120.integration.measure.result import Measurement, Result

# Prompts of the same nominal length differ a little between tokenizers and texts.
CONTEXT_TOLERANCE = 0.02


@dataclass(frozen=True)
class Line:
    """One pair of measurements: their relative difference, or why there is none."""

    kind: str
    what: str
    a: float | None
    b: float | None
    change: float | None
    refused: str | None


def compare(a: Result, b: Result, *, accept: tuple[str, ...] = ()) -> list[Line]:
    """Pair the measurements of two results. `accept` names conditions that are the very thing being compared.

    Two results differ in some condition, or there would be nothing to compare; every difference must be named in
    `accept`, and what one side does not say counts as a difference.
    """
    reasons = [(name, reason) for name, reason in unlike(a, b) if name not in accept]
    lines = []
    for one in a.measurements:
        others = [other for other in b.measurements if other.kind == one.kind and _same_request(one, other) is None]
        if not others:
            near = [other for other in b.measurements if other.kind == one.kind]
            why = f"other request: {_same_request(one, near[0])}" if near else "only on one side"
            lines.append(Line(one.kind, describe(one), one.value, None, None, why))
            continue
        same = [other for other in a.measurements if other.kind == one.kind and _same_request(one, other) is None]
        if (most := max(len(same), len(others))) > 1:
            # Which of them is meant, nothing says.
            why = f"{most} of this kind and request on one side"
            lines.append(Line(one.kind, describe(one), one.value, None, None, why))
            continue
        lines.append(_line(one, others[0], reasons))
    return lines


def lacking(a: Result, b: Result, accept: tuple[str, ...] = ()) -> list[str]:
    """The conditions that would have to be accepted as well before anything of the two is compared."""
    return [name for name, _ in unlike(a, b) if name not in accept]


# How large a pool is, no sampling and no power limit decides.
WITHOUT_BEARING = {"token pool": ("sampling", "power_limit_w")}


def unlike(a: Result, b: Result) -> list[tuple[str, str]]:
    """Conditions in which the two differ or of which one says nothing."""
    found = []
    for name in ("device", "power_limit_w", "model", "weights", "speculation", "runtime", "profile", "sampling"):
        one, other = getattr(a.conditions, name), getattr(b.conditions, name)
        if one is None and other is None and name == "profile":
            continue  # a name of ours: nothing depends on it that is not said elsewhere
        if one is None and other is None:
            found.append((name, f"{name}: neither side says"))
        elif one is None or other is None:
            found.append((name, f"{name}: {'first' if one is None else 'second'} does not say"))
        elif one != other:
            found.append((name, f"{name}: {one} / {other}"))
    if a.source != b.source:
        found.append(("source", f"source: {a.source} / {b.source}"))
    return found


def describe(one: Measurement) -> str:
    """The request in a few words."""
    parts = []
    if one.concurrency:
        parts.append(f"C{one.concurrency}")
    if one.context_tokens is not None:
        parts.append(f"{one.context_tokens:,} tokens")
    if one.new_tokens:
        # For a level of effort it is a budget; elsewhere exactly that many were made.
        parts.append(f"{'up to ' if one.effort else ''}{one.new_tokens} new")
    if one.effort:
        parts.append(f"effort {one.effort}")
    if one.trace:
        parts.append(f"trace {one.trace}")
    if one.context_band:
        parts.append(f"band {one.context_band[0]:,} to {one.context_band[1]:,}")
    if one.overlap:
        parts.append(one.overlap)
    return ", ".join(parts)


def _line(one: Measurement, other: Measurement, reasons: list[tuple[str, str]]) -> Line:
    why = [reason for name, reason in reasons if name not in WITHOUT_BEARING.get(one.kind, ())]
    if one.value is None or other.value is None:
        why.insert(0, f"not measured: {one.refused or other.refused}")
    elif one.value == 0:
        why.insert(0, "the first is 0")
    if why:
        return Line(one.kind, describe(one), one.value, other.value, None, "; ".join(why))
    assert one.value is not None and other.value is not None
    return Line(one.kind, describe(one), one.value, other.value, (other.value - one.value) / one.value, None)


def _same_request(one: Measurement, other: Measurement) -> str | None:
    """Why two measurements of a kind did not ask the same; None when they did."""
    for name in ("concurrency", "new_tokens", "effort", "trace", "context_band", "overlap"):
        if getattr(one, name) != getattr(other, name):
            return f"{name} {getattr(one, name)} / {getattr(other, name)}"
    x, y = one.context_tokens, other.context_tokens
    if (x is None) != (y is None):
        return f"context {x} / {y}"
    if x is not None and y is not None and abs(x - y) > CONTEXT_TOLERANCE * max(x, y):
        return f"context {x:,} / {y:,} tokens"
    if one.restored_tokens != other.restored_tokens:
        return f"restored tokens {one.restored_tokens} / {other.restored_tokens}"
    return None
