"""`sm120 results` and `sm120 compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.compare import compare, describe, lacking
from sm120.integration.measure.report import draw
from sm120.integration.measure.result import PUBLISHED, Conditions, load_result, published

console = make_console()


def results_command(
    folder: Annotated[Path, typer.Option(help="qualifications made here")] = Path("build/qualify"),
    plots: Annotated[
        Path | None, typer.Option(help="draw every result into a folder of its own below this one")
    ] = None,
) -> None:
    """List every result: those that ship here, reported by others, and those measured here."""
    table = Table("result", "source", "what", "request", "value", "note")
    paths = [PUBLISHED / f"{name}.json" for name in published()]
    paths += [path.parent for path in sorted(folder.glob("*/result.json"))]
    for path in paths:
        result = load_result(path)
        if plots is not None:
            (plots / result.id).mkdir(parents=True, exist_ok=True)
            draw(result, plots / result.id)
        for one in result.measurements:
            value = f"{one.value:,.2f} {one.unit}" if one.value is not None else one.outcome or "none"
            note = one.refused or one.note
            table.add_row(*map(escape, (result.id, result.source, one.kind, describe(one), value, note)))
    console.print(table)


def compare_command(
    a: Path,
    b: Path,
    accept: Annotated[
        list[str] | None, typer.Option(help="a condition that is meant to differ, or that is unknown")
    ] = None,
) -> None:
    """Compare two results (files, folders or ids). Exit 1 when no pair is alike."""
    known = {*Conditions.model_fields, "source"}
    for name in accept or []:
        if name not in known:
            raise Refusal("compare-accept", f"{name!r} is no condition", fix=f"one of {', '.join(sorted(known))}")
    first, second = load_result(a), load_result(b)
    lines = compare(first, second, accept=tuple(accept or ()))
    table = Table(title_justify="left")
    # What a line is and its numbers are never cut; reasons may run over several lines.
    for column in ("what", "request", first.id, second.id, "change"):
        table.add_column(column, no_wrap=True)
    table.add_column("not compared because", overflow="fold")
    for line in lines:
        values = ["" if value is None else f"{value:,.2f}" for value in (line.a, line.b)]
        change = "" if line.change is None else f"{line.change:+.1%}"
        table.add_row(*map(escape, (line.kind, line.what, *values, change, line.refused or "")))
    console.print(table)
    missing = lacking(first, second, tuple(accept or ()))
    # Where not one request is alike, no condition that is accepted would help.
    if missing and any(line.a is not None and line.b is not None and line.refused for line in lines):
        named = "".join(f" --accept {name}" for name in (*(accept or ()), *missing))
        typer.echo(f"what differs or is not known has to be meant: sm120 compare {a} {b}{named}")
    raise typer.Exit(0 if any(line.change is not None for line in lines) else 1)
