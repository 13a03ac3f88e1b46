"""`sm120 series`: look at, check, rewrite and edit a patch series."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console, working
from sm120.integration.common.refusal import Refusal

app = typer.Typer(no_args_is_help=True, help="Look at, check, rewrite and edit a patch series.")
console = make_console()

Project = Annotated[str | None, typer.Argument(help="sglang, flashinfer or nixl; all when left out")]


@app.command("lint")
def series_lint(project: Project = None) -> None:
    """Check pins, headers, diffs, kernel manifests and the age of statuses without an upstream tree."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.series.kernel_lint import lint_kernels
    from sm120.integration.series.series import load_series
    from sm120.integration.upstream.status import statuses

    checkout = find_checkout()
    for name in [project] if project else checkout.projects():
        recipe = load_recipe(checkout, name)
        console.print(f"{recipe.name}: {len(recipe.series.patches)} patches, {len(recipe.overlay)} overlay files")
    series = [load_series(checkout.patches / name) for name in checkout.projects()]
    for warning in lint_kernels(checkout.kernels, series):
        console.print(f"warning: {warning}", markup=False)
    rows = [row for row in statuses(checkout, datetime.date.today()) if project in (None, row.project)]
    for row in rows:
        for kind, texts in (("warning", row.warnings), ("error", row.errors)):
            for text in texts:
                console.print(f"{kind}: {row.slug}: {text}", markup=False)
    raise typer.Exit(1 if any(row.errors for row in rows) else 0)


@app.command("refresh")
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
        with working(f"applying the patches of {name}"):
            pristine = pristine_of(checkout, recipe)
            if check:
                pairs = canonical.canonical_patches(recipe.series, pristine, recipe.overlay)
                stale += [p.slug for p, text in pairs if p.path.read_bytes() != text.encode(errors="surrogateescape")]
            else:
                stale += canonical.refresh(recipe.series, pristine, recipe.overlay)
    for slug in stale:
        console.print(f"{'not canonical' if check else 'rewritten'}: {slug}")
    raise typer.Exit(1 if check and stale else 0)


@app.command("apply")
def series_apply(project: str, folder: Path) -> None:
    """Place the overlay and apply the series in FOLDER (an unpacked wheel of the pin), all of it or nothing."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.series.apply import apply_in_place

    recipe = load_recipe(find_checkout(), project)
    apply_in_place(folder, recipe.series, recipe.overlay)
    console.print(f"{len(recipe.series.patches)} patches and {len(recipe.overlay)} overlay files applied in {folder}")


@app.command("quilt")
def series_quilt(project: str, folder: Path) -> None:
    """Write FOLDER as quilt's patches/ folder, the overlay as a generated first patch."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.series.quilt import export_quilt

    if folder.exists():
        raise Refusal("quilt-exists", "is there already", path=folder, fix="name a new folder")
    recipe = load_recipe(find_checkout(), project)
    export_quilt(recipe.series, recipe.overlay, folder)
    console.print(f"{folder}: quilt push -a --fuzz=0")


@app.command("edit")
def series_edit(project: str, folder: Path) -> None:
    """Make FOLDER a git repository with one commit per patch, to work on with git."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.build.runtime import pristine_of
    from sm120.integration.series.workspace import check_empty, edit

    checkout = find_checkout()
    check_empty(folder)  # before anything is fetched
    with working(f"making a commit of each patch of {project}"):
        recipe = load_recipe(checkout, project)
        edit(recipe.series, recipe.overlay, pristine_of(checkout, recipe), folder)
    count = len(recipe.series.patches)
    console.print(f"{count} patches as commits on branch 'series' of {folder}; write them back with sm120 series save")


@app.command("save")
def series_save(project: str, folder: Path) -> None:
    """Write the commits of FOLDER back as the series of PROJECT, in canonical form."""
    from sm120.integration.series.workspace import save

    checkout = find_checkout()
    with working(f"writing the commits back as the series of {project}"):
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
