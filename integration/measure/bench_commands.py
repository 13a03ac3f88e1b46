"""`sm120 bench`: medians with minimum and maximum, each with the command that gives it."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sm120.integration.build.identity import Recipe, load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.build.tree import patched_tree
from sm120.integration.build.wheels import repack
from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal
from sm120.integration.prove.persistence.persistence_commands import bench_command as persistence_command
from sm120.integration.prove.persistence.persistence_commands import bench_namespace_command
from sm120.integration.series.apply import apply_series, copy_touched
from sm120.integration.series.quilt import export_quilt

app = typer.Typer(no_args_is_help=True, help="Measure the pipeline, the storage path, or a kernel.")
console = make_console()


@app.command("pipeline")
def pipeline(rounds: Annotated[int, typer.Option(min=1, help="runs of each, in alternation")] = 7) -> None:
    """Apply the series beside `quilt push -a`, a warm `sm120 runtime`, and one project's wheel."""
    checkout = find_checkout()
    table = Table("what", "ours, median (min to max)", "quilt, median (min to max)", "ratio", title_justify="left")
    for project in checkout.projects():
        recipe = load_recipe(checkout, project)
        if not recipe.series.patches:
            continue
        ours, theirs = _apply_against_quilt(checkout, recipe, rounds)
        ratio = statistics.median(ours) / statistics.median(theirs)
        name = f"apply {len(recipe.series.patches)} {project} patches"
        table.add_row(name, _spread(ours), _spread(theirs), f"{ratio:.2f}")
    warm = [_seconds(partial(_warm, checkout)) for _ in range(rounds)]
    table.add_row("sm120 runtime, nothing changed", _spread(warm), "", "")
    for project in checkout.projects():
        recipe = load_recipe(checkout, project)
        table.add_row(f"patch and repack {project}", f"{_repack_once(checkout, recipe):.1f} s (one run)", "", "")
    console.print(table)


app.command("persistence")(persistence_command)
app.command("namespace")(bench_namespace_command)


def _add_kernel(name: str) -> None:
    @app.command(name, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def kernel(context: typer.Context) -> None:
        """The kernel's own benchmark; it prints no number unless the kernel's tests are green in the same run."""
        command = [sys.executable, "-m", f"sm120.kernels.{name}.bench", *context.args]
        raise typer.Exit(subprocess.run(command).returncode)


# In a process of its own: this package never imports a kernel.
for _bench in sorted((Path(__file__).resolve().parents[2] / "kernels").glob("[!_]*/bench.py")):
    _add_kernel(_bench.parent.name)


def _apply_against_quilt(checkout: Checkout, recipe: Recipe, rounds: int) -> tuple[list[float], list[float]]:
    """Both on the files that the series touches, in alternation, so that a busy moment meets both."""
    if shutil.which("quilt") is None:
        raise Refusal("tool-missing", "quilt is not installed", fix="apt-get install quilt")
    pristine = pristine_of(checkout, recipe)
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as name:
        for number in range(rounds):
            tree = Path(name) / f"ours-{number}"
            copy_touched(pristine, recipe.series.patches, tree)
            ours.append(_seconds(partial(apply_series, tree, recipe.series, recipe.overlay)))
            tree = Path(name) / f"quilt-{number}"
            copy_touched(pristine, recipe.series.patches, tree)
            export_quilt(recipe.series, recipe.overlay, tree / "patches")
            theirs.append(_seconds(partial(_quilt_push, tree)))
    return ours, theirs


def _quilt_push(tree: Path) -> None:
    environment = os.environ | {"QUILT_PATCHES": "patches", "QUILTRC": "-"}
    command = ["quilt", "push", "-a", "--fuzz=0", "-q"]
    _run(command, tree, environment)


def _warm(checkout: Checkout) -> None:
    command = [str(Path(sys.executable).with_name("sm120")), "runtime"]
    _run(command, checkout.root, dict(os.environ))


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        said = (result.stdout + result.stderr).strip().splitlines() or ["it said nothing"]
        raise Refusal("bench-failed", f"{command[0]} ended with {result.returncode}: {said[-1]}", path=folder)


def _repack_once(checkout: Checkout, recipe: Recipe) -> float:
    pristine = pristine_of(checkout, recipe)
    with tempfile.TemporaryDirectory(prefix="sm120-bench-", dir=checkout.build) as name:
        folder = Path(name)

        def work() -> None:
            tree = patched_tree(pristine, recipe.series, recipe.overlay, folder / "tree")
            repack(tree, recipe.series.pin, recipe.local_version, folder / "wheel")

        return _seconds(work)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f})"
