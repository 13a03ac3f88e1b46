"""`sm120 detector`: how often the ladder is right, on real releases, on what is carried, and on a clone's history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.completion import projects as known
from sm120.integration.upstream.detector import measure, summary
from sm120.integration.upstream.detector_trials import left_out, left_out_summary, reworded_commits, reworded_summary
from sm120.integration.upstream.version_commands import known_projects

progress = make_console(stderr=True)


def detector_command(
    projects: Annotated[list[str] | None, typer.Argument(help="all when left out", autocompletion=known)] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="changes between each two neighbouring releases, or commits of a clone")
    ] = 60,
    show: Annotated[bool, typer.Option(help="list every wrong answer")] = False,
    hunks: Annotated[bool, typer.Option("--left-out", help="instead: leave each hunk of each patch out")] = False,
    reworded: Annotated[
        Path | None, typer.Option(help="instead: commits of this clone of the project, in other words")
    ] = None,
    between: Annotated[
        str, typer.Option(help="with --reworded: the releases that they lie between, OLDER..NEWER")
    ] = "",
) -> None:
    """Measure how often the ladder is right where the answer is known. Exit 1 when it called something merged that is not."""
    checkout = find_checkout()
    names = [name for one in projects or [None] for name in known_projects(checkout, one)]  # type: ignore[list-item]
    if hunks and reworded:
        raise Refusal("detector-trial", "--left-out and --reworded are two trials: name one")
    if hunks:
        wrong = _left_out(checkout, names, show)
    elif reworded:
        if not projects or len(names) != 1:
            raise Refusal("history-clone", "--reworded is a clone of one project: name the project", path=reworded)
        wrong = _reworded(checkout, names[0], reworded, between, sample, show)
    else:
        wrong = _releases(checkout, names, sample, show)
    raise typer.Exit(1 if wrong else 0)


def _releases(checkout: Checkout, names: list[str], sample: int, show: bool) -> bool:
    trials = [trial for name in names for trial in measure(checkout, name, sample, _tell)]
    typer.echo(summary(trials))
    for trial in trials:
        if show and not trial.right:
            typer.echo(f"{trial.kind}: {trial.change} on {trial.release}: {trial.verdict.why}")
    return any(trial.state == "merged" for trial in trials if trial.kind.startswith(("never", "without")))


def _left_out(checkout: Checkout, names: list[str], show: bool) -> bool:
    trials = [trial for name in names for trial in left_out(checkout, name)]
    typer.echo(left_out_summary(trials))
    for trial in trials:
        if show and not trial.right:
            typer.echo(f"{trial.slug} without {trial.hunk or 'nothing'}: {trial.state} {trial.where}")
    return any(trial.state == "merged" for trial in trials if trial.hunk)


def _reworded(checkout: Checkout, project: str, clone: Path, between: str, sample: int, show: bool) -> bool:
    trials = list(reworded_commits(checkout, project, clone, between, sample, _tell))
    typer.echo(reworded_summary(trials))
    for trial in trials:
        if show and (trial.found != trial.commit or trial.control):
            typer.echo(f"{trial.commit} at {trial.share} %: found {trial.found or 'none'}, before it {trial.control}")
    return any(trial.control for trial in trials)


def _tell(line: str) -> None:
    progress.print(line, markup=False)
