"""One page and its plots from one result; nothing here computes a new number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.compare import describe
from sm120.integration.measure.result import Measurement, Result


def write_report(result: Result, folder: Path, *, plots: bool = True) -> Path:
    """Write report.md and, unless told not to, its plots into `folder`; returns the page.

    Raises:
        Refusal: `report-matplotlib` when matplotlib is not installed; nothing is written then.
    """
    drawn = draw(result, folder) if plots else []
    lines = [f"# {result.id}", "", f"{result.source}, {result.date}", ""]
    for name, value in result.conditions.model_dump().items():
        if value not in (None, ""):
            lines.append(f"* {name.replace('_', ' ')}: {value}")
    lines += ["", "| what | request | value | note |", "| --- | --- | --- | --- |"]
    for one in result.measurements:
        note = (one.refused or one.note).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {one.kind} | {describe(one)} | {one.shown()} | {note} |")
    lines += ["", "What each line means: docs/qualification.md. Raw requests and answers: requests.jsonl.", ""]
    lines += [f"![{plot.stem}]({plot.name})" for plot in drawn]
    page = folder / "report.md"
    page.write_text("\n".join(lines) + "\n")
    return page


def draw(result: Result, folder: Path) -> list[Path]:
    """The plots for which the result has numbers: prefill curve, restore beside cold, decode, a trace by context band."""
    try:
        import matplotlib
    except ImportError:
        raise Refusal(
            "report-matplotlib", "plots need matplotlib", fix="build/dev/bin/pip install --editable '.[report]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = []
    for name, draw_one in (("prefill", _prefill), ("restore", _restore), ("decode", _decode), ("trace", _trace)):
        figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        if draw_one(axes, result):
            axes.set_title(f"{result.id} ({result.source})", fontsize=9)
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=110)
            drawn.append(path)
        plt.close(figure)
    return drawn


def _of(result: Result, kind: str) -> list[Measurement]:
    found = [one for one in result.measurements if one.kind == kind and one.value is not None]
    return sorted(found, key=lambda one: (one.context_tokens or 0, one.concurrency or 0))


def _prefill(axes: Any, result: Result) -> bool:
    points = [one for one in _of(result, "cold prefill") if one.context_tokens]
    if not points:
        return False
    axes.plot([one.context_tokens for one in points], [one.value for one in points], "o-")
    for one in points:
        axes.plot([one.context_tokens] * len(one.values), one.values, "_", color="grey")
    axes.set(xlabel="prompt tokens", ylabel="cold prefill, tok/s", ylim=(0, None))
    return True


def _restore(axes: Any, result: Result) -> bool:
    bars: list[tuple[str, float]] = []
    for one in _of(result, "cold prefill"):
        if one.context_tokens and one.value:
            bars.append((f"cold\n{one.context_tokens:,}", one.context_tokens / one.value))
    for kind, label in (("radix reuse", "device"), ("storage restore", "storage")):
        bars += [(f"{label}\n{one.context_tokens or 0:,}", float(one.value or 0)) for one in _of(result, kind)]
    if len({label.split("\n")[0] for label, _ in bars}) < 2:
        return False
    axes.bar([label for label, _ in bars], [value for _, value in bars])
    axes.set(ylabel="seconds to the first token")
    return True


def _decode(axes: Any, result: Result) -> bool:
    kinds = ("decode per stream", "decode makespan")
    drawn = False
    for offset, kind in enumerate(kinds):
        found = sorted(_of(result, kind), key=lambda one: (one.concurrency or 0, one.context_tokens or 0))
        labels = [f"C{one.concurrency}\n{one.context_tokens or 0:,}" for one in found]
        places = [index + 0.4 * offset for index in range(len(found))]
        axes.bar(places, [one.value for one in found], width=0.38, label=kind)
        axes.set_xticks([index + 0.2 for index in range(len(found))], labels)
        drawn = drawn or bool(found)
    axes.set(xlabel="concurrency, context tokens", ylabel="tok/s")
    axes.legend()
    return drawn


def _trace(axes: Any, result: Result) -> bool:
    """Bars for each kind of overlap, never joined; a band that no such request fell into has no bar."""
    found = [one for one in _of(result, "trace decode per stream") if one.context_band]
    bands = sorted({one.context_band for one in found if one.context_band})
    series = sorted({(one.concurrency or 0, one.overlap or "") for one in found})
    width = 0.8 / max(1, len(series))
    for index, (concurrency, overlap) in enumerate(series):
        mine = [one for one in found if (one.concurrency or 0, one.overlap or "") == (concurrency, overlap)]
        places = [bands.index(one.context_band or (0, 1)) + index * width for one in mine]
        axes.bar(places, [one.value for one in mine], width=width, label=f"C{concurrency}, {overlap}")
        for place, one in zip(places, mine, strict=True):
            axes.plot([place] * len(one.values), one.values, "_", color="grey")
    middle = (len(series) - 1) * width / 2
    axes.set_xticks([index + middle for index in range(len(bands))], [f"{low:,} to\n{high:,}" for low, high in bands])
    axes.set(xlabel="context band, tokens", ylabel="decode per stream, tok/s", ylim=(0, None))
    if found:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return bool(found)
