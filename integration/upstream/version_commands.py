"""Commands about releases: matrix, bump and the detector's measurement."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid

from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.console import make_console, working
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.series.completion import projects
from sm120.integration.series.pin import load_pin
from sm120.integration.series.series import load_series
from sm120.integration.upstream.bump import Plan, accept, bump_folder, load_plan, plan_bump, time_machine
from sm120.integration.upstream.matrix import Table, make_matrix, record_matrix
from sm120.integration.upstream.matrix_page import page
from sm120.integration.upstream.releases import Release, find_release, load_releases, local_release
from sm120.integration.upstream.watch import (
    Companion,
    News,
    new_companions,
    new_toolchain,
    new_versions,
    report,
    try_release,
    unlisted_release,
)

console = make_console()
progress = make_console(stderr=True)
COLOURS = {
    "applies": "green",
    "conflicts": "red",
    "partly": "yellow",
    "disputed": "red",
    "merged": "blue",
    "superseded": "magenta",
    "n/a": "dim",
}


def matrix_command(
    project: Annotated[
        str | None, typer.Argument(help="one project; all when left out", autocompletion=projects)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, rungs included")] = False,
    html: Annotated[Path | None, typer.Option(help="write one self-contained page")] = None,
    probes: Annotated[
        bool, typer.Option(help="run the probes on the unpatched releases where that was not done (minutes a release)")
    ] = False,
    record: Annotated[bool, typer.Option(help="write patches/matrix.json, which the README is made from")] = False,
    history: Annotated[
        Path | None, typer.Option(help="a clone of the project (a partial one is enough): finds changes in other words")
    ] = None,
) -> None:
    """Show what every patch is on every listed release. Cells are cached by content; a second run takes seconds."""
    checkout = find_checkout()
    if history and project is None:
        raise Refusal("history-clone", "--history is a clone of one project: name the project", path=history)
    tables = [
        make_matrix(
            checkout, name, probes=probes, history=history, report=lambda line: progress.print(line, markup=False)
        )
        for name in known_projects(checkout, project)
    ]
    if record:
        progress.print(f"recorded in {record_matrix(checkout, tables, datetime.date.today())}", markup=False)
    if html:
        html.parent.mkdir(parents=True, exist_ok=True)
        series = [load_series(checkout.patches / table.project) for table in tables]
        patches = {patch.slug: patch for one in series for patch in one.patches}
        html.write_text(page(tables, datetime.date.today(), patches))
        progress.print(f"page: {html}", markup=False)
    if as_json:
        typer.echo(json.dumps([table.as_data() for table in tables], indent=1))
    elif not html:
        for table in tables:
            console.print(_grid(table))


def known_projects(checkout: Checkout, project: str | None) -> list[str]:
    """The named project, or all.

    Raises:
        Refusal: `unknown-project`.
    """
    projects = checkout.projects()
    if project is None:
        return projects
    if project not in projects:
        raise Refusal("unknown-project", f"no project is called {project!r}{there_are(project, projects)}")
    return [project]


def _grid(table: Table) -> Grid:
    grid = Grid(title=f"{table.project} (pinned {table.pinned})", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    # A slug is what the other commands want: it is never cut.
    grid.add_column("patch", no_wrap=True, min_width=max((len(row.slug) for row in table.rows), default=0))
    for version in table.versions:
        grid.add_column(version, overflow="fold", min_width=9)
    for row in table.rows:
        cells = []
        for version in table.versions:
            cell = row.cells[version]
            path, _, hunk = cell.where.rpartition(":")
            where = f" ({path.rsplit('/', 1)[-1]}:{hunk})" if cell.where else ""
            colour = COLOURS[cell.word.split(" with")[0]]
            cells.append(f"[{colour}]{cell.word}{where}[/{colour}]")
        grid.add_row(row.slug, *cells)
    return grid


def bump_command(
    project: Annotated[str, typer.Argument(autocompletion=projects)],
    version: str,
    wheel: Annotated[Path | None, typer.Option(help="the release's wheel, when it is not in releases.toml")] = None,
    probes: Annotated[bool, typer.Option(help="run the probes on the new release: finds superseded patches")] = False,
    machine: Annotated[
        bool, typer.Option("--time-machine", help="for each conflict: the newest release on which it applies")
    ] = False,
    accept_plan: Annotated[bool, typer.Option("--accept", help="carry out the plan that the last run made")] = False,
    drop: Annotated[list[str] | None, typer.Option(help="with --accept: give this patch up")] = None,
    taken: Annotated[
        list[str] | None,
        typer.Option(help="with --accept: I looked, and upstream has this patch (not an exact reverse)"),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="a clone of the project (a partial one is enough): finds changes in other words")
    ] = None,
) -> None:
    """Try the series of PROJECT on another release and write a plan; exit 1 while patches are undecided."""
    checkout = find_checkout()
    known_projects(checkout, project)
    if (drop or taken) and not accept_plan:
        raise Refusal("bump-drop", "--drop and --taken go with --accept")
    if accept_plan:
        for line in accept(checkout, load_plan(checkout, project, version), drop or [], taken or []):
            console.print(line, markup=False)
        console.print(f"ledger.toml: give every row of {project} a verdict for {version}")
        console.print(
            f"now: sm120 lock, sm120 series refresh --check, sm120 probe {project}, sm120 matrix --record --probes, "
            "sm120 readme, make test",
            soft_wrap=True,
        )
        return
    with (
        working(f"trying the patches of {project} on {version}"),
        _release(checkout, project, version, wheel) as (release, file),
    ):
        plan = plan_bump(checkout, project, release, wheel=file, probes=probes, history=history)
    _print_plan(plan)
    if machine:
        for outcome in plan.open:
            newest = time_machine(checkout, project, version, outcome.slug)
            console.print(f"{outcome.slug}: newest release on which it applies: {newest or 'none that is listed'}")
    folder = bump_folder(checkout, project, version)
    if plan.open:
        console.print(f"mend the files under {folder / 'conflicts'} and run this again,", markup=False, soft_wrap=True)
        console.print("or give patches up: " + " ".join(f"--drop {outcome.slug}" for outcome in plan.open))
    for outcome in plan.unsure:
        console.print(
            f"merged, but not by an exact reverse: look, then --accept --taken {outcome.slug}", soft_wrap=True
        )
    console.print(f"plan: {folder / 'plan.json'}; carry it out with --accept", markup=False, soft_wrap=True)
    raise typer.Exit(1 if plan.open else 0)


@contextmanager
def _release(
    checkout: Checkout, project: str, version: str, wheel: Path | None
) -> Iterator[tuple[Release, Path | None]]:
    """The release to try, with its wheel where it is not a listed one: the named file, or what the index has."""
    folder = checkout.patches / project
    if wheel:
        yield local_release(wheel, version, load_pin(folder).distribution), wheel
    elif any(one.version == version for one in load_releases(folder)):
        yield find_release(folder, version), None
    else:
        with unlisted_release(checkout, project, version) as found:
            yield found


def _print_plan(plan: Plan) -> None:
    console.print(f"{plan.project} {plan.pinned} → {plan.version}", markup=False)
    for outcome in plan.outcomes:
        console.print(f"  {outcome.kind:13} {outcome.slug}: {outcome.why}", markup=False, soft_wrap=True)
        for line in outcome.died_of:
            console.print(f"      {line}", markup=False, soft_wrap=True)
        for file in outcome.files:
            console.print(f"      mend: {file}", markup=False, soft_wrap=True)
    for line in plan.requires:
        console.print(line, markup=False, soft_wrap=True)


def watch_command(
    report_file: Annotated[Path | None, typer.Option("--report", help="write the news here as Markdown")] = None,
) -> None:
    """Look for releases that are not listed, try the series on each, and look at what is installed beside. Exit 3: news."""
    checkout = find_checkout()
    news: list[News] = []
    companions: list[Companion] = []
    refused: list[Refusal] = []
    for project in checkout.projects():
        versions: list[str] = []
        beside: list[Companion] = []
        # One refusal must not hide other news.
        with _noted(refused):
            versions = new_versions(checkout, project)
        with _noted(refused):
            beside = new_companions(checkout, project)
        _print_news(project, versions, beside)
        companions += beside
        for version in versions:
            with _noted(refused):
                news.append(try_release(checkout, project, version))
    with _noted(refused):
        toolchain = new_toolchain(checkout)
        _print_news("runtime", [], toolchain)
        companions += toolchain
    for refusal in refused:
        progress.print(f"error: {refusal}", markup=False, soft_wrap=True)
    if news or companions:
        text = report(news, companions, refused)
        if report_file:
            report_file.write_text(text)
        else:
            typer.echo(text)
    raise typer.Exit(3 if news or companions else 2 if refused else 0)


@contextmanager
def _noted(refused: list[Refusal]) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        refused.append(refusal)


def _print_news(name: str, versions: list[str], beside: list[Companion]) -> None:
    names = [*versions, *(f"{one.distribution} {version}" for one in beside for version in one.versions)]
    console.print(f"{name}: {', '.join(names) or 'nothing new'}", markup=False)
