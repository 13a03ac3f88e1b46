"""`sm120 status`: every patch with tier, upstream state, rivals, freshness, evidence and what does not fit."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid

from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.console import make_console, working
from sm120.integration.upstream.ledger import ledger_findings, load_ledger
from sm120.integration.upstream.matrix import Cell, make_matrix
from sm120.integration.upstream.status import PatchStatus, as_json, refresh, short, statuses

console = make_console()
progress = make_console(stderr=True)


def status_command(
    ask: Annotated[
        bool, typer.Option("--refresh", help="ask GitHub and record a dated row in patches/status/")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    ladder: Annotated[bool, typer.Option(help="compare headers with the matrix (fetches listed releases)")] = True,
    ledger: Annotated[bool, typer.Option(help="show the ledger of the original changes instead")] = False,
) -> None:
    """Show what is known about every patch. Stale entries are warned of; exit 1 when something contradicts itself.

    `--ledger` shows every change that was ever wanted instead, checked the same way against the matrix.
    """
    checkout = find_checkout()
    today = datetime.date.today()
    if ledger:
        raise typer.Exit(_print_ledger(checkout, today, ladder))
    if ask:
        ledgered = [pull for change in load_ledger(checkout) for pull in change.pulls]
        path, unanswered = refresh(checkout, today, also=ledgered)
        progress.print(
            f"recorded in {path}" if path else "nothing was answered: last known states are shown", markup=False
        )
        if unanswered:
            progress.print(f"warning: {unanswered}", markup=False)
    cells: dict[tuple[str, str], Cell] = {}
    if ladder:
        for project in checkout.projects():
            with working(f"comparing the patches of {project} with the listed releases"):
                table = make_matrix(checkout, project)
            if table.pinned in table.versions:
                cells |= {(project, row.slug): row.cells[table.pinned] for row in table.rows}
    rows = statuses(checkout, today, lambda project, slug: cells.get((project, slug)))
    if json:
        typer.echo(as_json(rows))
    else:
        for project in dict.fromkeys(row.project for row in rows):
            console.print(_grid(project, [row for row in rows if row.project == project]))
    for row in rows:
        for text in row.warnings:
            progress.print(f"warning: {row.slug}: {text}", markup=False)
        for text in row.errors:
            progress.print(f"error: {row.slug}: {text}", markup=False)
    raise typer.Exit(1 if any(row.errors for row in rows) else 0)


def _grid(project: str, rows: list[PatchStatus]) -> Grid:
    grid = Grid(title=project, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    _identifying(grid, "patch", [row.slug for row in rows])
    grid.add_column("tier")
    grid.add_column("upstream")
    _identifying(grid, "rivals, last known", [short(pull) for row in rows for pull in row.rivals])
    grid.add_column("looked at")
    grid.add_column("evidence")
    for row in rows:
        # A rival that GitHub was not asked about was open on the day that somebody looked at it for the header.
        pulls = [f"{short(pull)} {row.pulls.get(pull, f'open {row.checked}')}" for pull in row.rivals]
        looked = f"{row.checked} ({row.age_days} d)"
        grid.add_row(row.slug, row.tier, row.upstream, "\n".join(pulls) or "none", looked, ", ".join(row.evidence))
    return grid


def _identifying(grid: Grid, name: str, values: list[str]) -> None:
    """A column that another command or a browser is given: it folds, and never cuts one of `values`."""
    grid.add_column(name, overflow="fold", min_width=max(map(len, values), default=0))


def _print_ledger(checkout: Checkout, today: datetime.date, ladder: bool) -> int:
    rows = load_ledger(checkout)
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    _identifying(grid, "change", [change.name for change in rows])
    for name in ("project", "what"):
        grid.add_column(name)
    _identifying(grid, "upstream", [short(pull) for change in rows for pull in change.pulls])
    for name in ("first release", "on the pin", "checked"):
        grid.add_column(name)
    for change in rows:
        pins = "\n".join(f"{version}: {verdict}" for version, verdict in change.pins.items())
        upstream = "\n".join(map(short, change.pulls)) or "none known"
        first = change.first_release or "none"
        grid.add_row(change.name, change.project, change.what, upstream, first, pins, change.checked.isoformat())
    console.print(grid)
    words: dict[tuple[str, str, str], str] = {}
    for project in checkout.projects() if ladder else []:
        with working(f"comparing the patches of {project} with the listed releases"):
            table = make_matrix(checkout, project)
        for row in table.rows:
            words |= {(project, row.slug, version): cell.word for version, cell in row.cells.items()}
    warnings, errors = ledger_findings(rows, today, lambda *key: words.get(key))
    for kind, texts in (("warning", warnings), ("error", errors)):
        for text in texts:
            progress.print(f"{kind}: {text}", markup=False)
    return 1 if errors else 0
