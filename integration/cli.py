"""The command line: `sm120 COMMAND`."""

from __future__ import annotations

import datetime
import errno
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sm120.integration.build.bench_commands import app as bench_app
from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console, working
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.operate_cli import register as register_operate
from sm120.integration.prove.nixl_check.nixl_commands import app as nixl_check_app
from sm120.integration.prove.persistence.persistence_commands import faults_command, prove_persistence_command
from sm120.integration.prove.prove_commands import prove_command
from sm120.integration.serve.namespace.namespace_commands import app as namespace_app
from sm120.integration.upstream.patch_commands import register as register_upstream

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
series_app = typer.Typer(no_args_is_help=True, help="Look at, check, rewrite and edit a patch series.")
app.add_typer(series_app, name="series")
app.add_typer(bench_app, name="bench")
app.command("prove")(prove_command)
app.command("prove-persistence")(prove_persistence_command)
app.command("faults")(faults_command)
app.add_typer(namespace_app, name="namespace")
app.add_typer(nixl_check_app, name="nixl-check")
register_operate(app)
register_upstream(app)
console = make_console()

Project = Annotated[str | None, typer.Argument(help="sglang, flashinfer or nixl; all when left out")]


def main() -> None:
    """Entry point: a refusal becomes its message and exit code 2; 1 is left to commands whose check said no.

    With SM120_DEBUG set, the traceback stands before the message.
    """
    try:
        app()
        return
    except (Refusal, OSError, UnicodeError) as error:
        said = _refusal_of(error)
        if os.environ.get("SM120_DEBUG"):
            traceback.print_exception(error)
    make_console(stderr=True).print(f"error: {said}", markup=False, soft_wrap=True)
    sys.exit(2)


def _refusal_of(error: Refusal | OSError | UnicodeError) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, UnicodeError):
        return Refusal("text-encoding", f"not text that can be read: {error}")
    full = error.errno == errno.ENOSPC
    return Refusal("disk-full" if full else "os-error", error.strerror or str(error), path=error.filename)


@app.command()
def runtime(
    flavor: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    prove: Annotated[bool, typer.Option(help="serve tiny models with it before it takes its place")] = False,
) -> None:
    """Build the patched runtime in build/runtime."""
    from sm120.integration.build.installed_runtime import ScriptFailed, UnusableFolder
    from sm120.integration.build.runtime import build_runtime
    from sm120.integration.prove.served_proof import prove as serve_and_compare
    from sm120.integration.prove.server import ServerFailed

    started = time.monotonic()
    checkout = find_checkout()

    def report(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {line}")

    def proof(home: Path, rows: Path) -> int:
        report("proving that it serves")
        try:
            return serve_and_compare(home, json=rows, work=checkout.build / "prove", console=console)
        except (ServerFailed, ScriptFailed, UnusableFolder, subprocess.TimeoutExpired, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise  # has a message of its own
            raise Refusal("proof-failed", str(error), path=checkout.build / "prove") from error

    build_runtime(checkout, flavor, report, proof if prove else None)


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Say what this machine is, what the runtime contains, and what is missing for SM120. Exit 1 on drift."""
    from sm120.integration.build.doctor import diagnose, exit_code

    found = diagnose(find_checkout())
    if json:
        typer.echo(found.as_json())
        raise typer.Exit(exit_code(found))
    for title, rows in (("machine", found.machine), ("runtime", found.runtime)):
        table = Table("", "", title=title, show_header=False, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if found.patches:
        table = Table("project", "patch or overlay file", "in the installed runtime", title_justify="left")
        for row in found.patches:
            table.add_row(*row)
        console.print(table)
    for line in found.drift:
        console.print(f"drift: {line}", style="red", markup=False)
    for line in found.missing:
        console.print(f"missing for SM120: {line}", markup=False)
    raise typer.Exit(exit_code(found))


@series_app.command("lint")
def series_lint(project: Project = None) -> None:
    """Check pins, headers, diffs, kernel manifests and the age of statuses without an upstream tree."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.upstream.status import statuses

    checkout = find_checkout()
    for name in [project] if project else checkout.projects():
        recipe = load_recipe(checkout, name)
        console.print(f"{recipe.name}: {len(recipe.series.patches)} patches, {len(recipe.overlay)} overlay files")
    rows = [row for row in statuses(checkout, datetime.date.today()) if project in (None, row.project)]
    for row in rows:
        for kind, texts in (("warning", row.warnings), ("error", row.errors)):
            for text in texts:
                console.print(f"{kind}: {row.slug}: {text}", markup=False)
    raise typer.Exit(1 if any(row.errors for row in rows) else 0)


@series_app.command("refresh")
def series_refresh(
    project: Project = None, check: Annotated[bool, typer.Option(help="change nothing; exit 1 if it would")] = False
) -> None:
    """Rewrite patches in canonical form on the pinned tree; drifted lines are followed, fuzz is refused."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.build.runtime import pristine_of
    from sm120.integration.series import canonical

    checkout = find_checkout()
    stale = []
    for name in [project] if project else checkout.projects():
        recipe = load_recipe(checkout, name)
        pristine = pristine_of(checkout, recipe)
        if check:
            pairs = canonical.canonical_patches(recipe.series, pristine, recipe.overlay)
            stale += [p.slug for p, text in pairs if p.path.read_bytes() != text.encode(errors="surrogateescape")]
        else:
            stale += canonical.refresh(recipe.series, pristine, recipe.overlay)
    for slug in stale:
        console.print(f"{'not canonical' if check else 'rewritten'}: {slug}")
    raise typer.Exit(1 if check and stale else 0)


@series_app.command("apply")
def series_apply(project: str, folder: Path) -> None:
    """Place the overlay and apply the series in FOLDER (an unpacked wheel of the pin), all of it or nothing."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.build.tree import apply_in_place

    recipe = load_recipe(find_checkout(), project)
    apply_in_place(folder, recipe.series, recipe.overlay)
    console.print(f"{len(recipe.series.patches)} patches and {len(recipe.overlay)} overlay files applied in {folder}")


@series_app.command("quilt")
def series_quilt(project: str, folder: Path) -> None:
    """Write FOLDER as quilt's patches/ folder, the overlay as a generated first patch."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.series.quilt import export_quilt

    if folder.exists():
        raise Refusal("quilt-exists", "is there already", path=folder, fix="name a new folder")
    export_quilt(load_recipe(find_checkout(), project), folder)
    console.print(f"{folder}: quilt push -a --fuzz=0")


@series_app.command("edit")
def series_edit(project: str, folder: Path) -> None:
    """Make FOLDER a git repository with one commit per patch, to work on with git."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.series.workspace import edit

    checkout = find_checkout()
    count = edit(checkout, load_recipe(checkout, project), folder)
    console.print(f"{count} patches as commits on branch 'series' of {folder}; write them back with sm120 series save")


@series_app.command("save")
def series_save(project: str, folder: Path) -> None:
    """Write the commits of FOLDER back as the series of PROJECT, in canonical form."""
    from sm120.integration.series.workspace import save

    checkout = find_checkout()
    saved = save(checkout, project, folder)
    for slug in saved.slugs:
        console.print(slug)
    for slug in saved.deleted:
        console.print(f"deleted, as its commit is gone: {checkout.patches / project / slug}.patch", soft_wrap=True)
    if saved.unseen:
        place = checkout.patches / project
        make_console(stderr=True).print(
            f"kept unseen, as `series edit` made no commit of them: {', '.join(saved.unseen)}\n"
            f"  to drop one: delete {place}/SLUG.patch and its line in {place / 'series'}",
            markup=False,
            soft_wrap=True,
        )


@app.command()
def probe(
    slug: Annotated[str, typer.Argument(help="a patch; or a project for all of its patches")],
) -> None:
    """Run a patch's probe on the pristine and on the patched tree. Exit 1 unless it is red there and green here."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.build.runtime import pristine_of
    from sm120.integration.build.tree import patched_tree
    from sm120.integration.series.probes import run_probes

    checkout = find_checkout()
    recipes = [load_recipe(checkout, name) for name in checkout.projects()]
    named = [(recipe, [p for p in recipe.series.patches if slug in (p.project, p.slug)]) for recipe in recipes]
    if slug not in checkout.projects() and not any(patches for _, patches in named):
        known = [*checkout.projects(), *(patch.slug for recipe in recipes for patch in recipe.series.patches)]
        raise Refusal("unknown-slug", f"no patch or project is called {slug!r}{there_are(slug, known)}")
    bad = 0
    for recipe, patches in named:
        if not patches:
            continue
        pristine = pristine_of(checkout, recipe)
        patched = patched_tree(pristine, recipe.series, recipe.overlay, checkout.build / "trees" / recipe.name)
        count = f"{len(patches)} probes" if len(patches) > 1 else "the probe"
        with working(f"{count} on the release {recipe.series.project} {recipe.series.pin.version}"):
            before = run_probes(checkout, patches, pristine)
        with working(f"{count} on the patched tree"):
            after = run_probes(checkout, patches, patched)
        for patch in patches:
            red, green = before[patch.slug].red, after[patch.slug].green
            bad += not (red and green)
            console.print(
                f"{patch.slug}: pristine {'red' if red else 'NOT RED'} ({before[patch.slug].failed} failed), "
                f"patched {'green' if green else 'NOT GREEN'} ({after[patch.slug].passed} passed)"
            )
            for line in () if red and green else before[patch.slug].failures + after[patch.slug].failures:
                console.print(f"    {line}", markup=False)
    raise typer.Exit(1 if bad else 0)


@app.command(hidden=True)
def link_test_layer() -> None:
    """Make torch and the rest of the runtime's dependency layer importable for the tests."""
    from sm120.integration.build.runtime import link_test_layer as link

    link(find_checkout())


@app.command()
def readme(check: Annotated[bool, typer.Option(help="change nothing; exit 1 if it would")] = False) -> None:
    """Write the patch tables of README.md and patches/PROJECT/README.md from the series and the recorded matrix."""
    from sm120.integration.upstream.patch_table import project_readme, replace_table

    checkout = find_checkout()
    path = checkout.root / "README.md"
    texts = {path: replace_table(path.read_text(), checkout)}
    for project in checkout.projects():
        texts[checkout.patches / project / "README.md"] = project_readme(checkout, project)
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        console.print(f"{'not as generated' if check else 'written'}: {path}", markup=False, soft_wrap=True)
        if not check:
            path.write_text(texts[path])
    raise typer.Exit(1 if check and stale else 0)
