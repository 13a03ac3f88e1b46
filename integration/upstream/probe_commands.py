"""`sm120 probe` and `sm120 readme`: prove patches, and write the tables that say what they are."""

from __future__ import annotations

from typing import Annotated

import typer

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console, working
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.series.completion import slugs_and_projects

console = make_console()


def probe_command(
    slug: Annotated[
        str, typer.Argument(help="a patch; or a project for all of its patches", autocompletion=slugs_and_projects)
    ],
) -> None:
    """Run a patch's probe on the pristine and on the patched tree. Exit 1 unless it is red there and green here."""
    from sm120.integration.build.identity import load_recipe
    from sm120.integration.build.runtime import pristine_of
    from sm120.integration.build.tree import patched_tree
    from sm120.integration.upstream.probes import run_probes

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


def readme_command(check: Annotated[bool, typer.Option(help="change nothing; exit 1 if it would")] = False) -> None:
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
