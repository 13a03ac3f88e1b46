"""Commands about upstream: closure and export of one patch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sm120.integration.build.identity import Recipe, load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.console import make_console, working
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.series.completion import slugs
from sm120.integration.upstream.closure import Closure, find_closure, prove_closure, undeclared
from sm120.integration.upstream.export import added_files, check_clone, check_folder, export_mbox, export_onto
from sm120.integration.upstream.field_table import documentation
from sm120.integration.upstream.pr_body import find_template, pr_body
from sm120.integration.upstream.probes import run_probes

console = make_console()


Slug = Annotated[str, typer.Argument(help="a patch", autocompletion=slugs)]


def closure_command(
    slug: Slug, prove: Annotated[bool, typer.Option(help="run the probe on a clean tree with only the closure")] = False
) -> None:
    """Show the earlier patches that SLUG needs. Exit 1 when `Requires:` does not name one it needs to apply."""
    checkout = find_checkout()
    recipe, closure = _closure(checkout, slug)
    for patch in closure.patches[:-1]:
        console.print(f"{patch.slug}: needed {'to apply' if patch in closure.to_apply else 'to work (Requires)'}")
    if len(closure.patches) == 1:
        console.print(f"{slug} stands alone")
    missing = undeclared(recipe.series, closure)
    for name in missing:
        console.print(f"Requires of {slug} does not name {name}")
    proven = True
    if prove:
        with working("the probe on the closure alone"):
            result = prove_closure(checkout, recipe, pristine_of(checkout, recipe), closure)
        proven = result.green
        console.print(f"probe on the closure alone: {'green' if proven else 'NOT green'} ({result.passed} passed)")
    raise typer.Exit(0 if proven and not missing else 1)


def export_command(
    slug: Slug,
    onto: Annotated[str | None, typer.Option(help="CLONE or CLONE@REF: commit on a new branch there")] = None,
    mbox: Annotated[Path | None, typer.Option(help="write files for `git am` into this new folder")] = None,
    body: Annotated[
        Path | None, typer.Option(help="PR text; default build/export/SLUG.md, none with --no-evidence")
    ] = None,
    signoff: Annotated[bool, typer.Option(help="add Signed-off-by with your identity (DCO)")] = False,
    evidence: Annotated[bool, typer.Option(help="run the probe before and after, for the PR text")] = True,
) -> None:
    """Export SLUG, its closure, overlay files and test as upstream commits, with a PR text."""
    checkout = find_checkout()
    if (onto is None) == (mbox is None):
        raise Refusal("export-target", "name one of --onto CLONE[@REF] and --mbox DIR")
    recipe, closure = _closure(checkout, slug)
    pristine = pristine_of(checkout, recipe)
    template, clone, ref = None, Path(), ""
    if onto is not None:
        # An @ may be part of a folder's name: the longest existing folder wins.
        clone, ref = (Path(onto), "HEAD") if Path(onto).is_dir() else _split(onto)
        template = find_template(clone, check_clone(clone, ref, slug)[0])
    if mbox is not None:
        check_folder(mbox)
    # The probes run before anything is made: a branch without its text could not be exported again.
    text = _body(checkout, recipe, closure, pristine, template, evidence) if evidence or body else None
    if onto is not None:
        made = export_onto(checkout, recipe, closure, clone, ref, signoff=signoff)
        for commit, subject in zip(made.commits, made.subjects, strict=True):
            console.print(f"{commit[:12]} {subject}", markup=False)
        console.print(f"branch {made.branch} of {clone}; nothing else there was touched")
    if mbox is not None:
        for path in export_mbox(checkout, recipe, closure, pristine, mbox, signoff=signoff):
            console.print(str(path))
    unsigned = [recipe.series.pin.signoff_note] if not signoff and recipe.series.pin.signoff_note else []
    described = [line for patch in closure.patches for line in documentation(recipe.series.pin, patch)]
    for note in unsigned + recipe.series.pin.export_notes + described:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if text is not None:
        target = body or checkout.build / "export" / f"{slug}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        console.print(f"PR text: {target}")


def _closure(checkout: Checkout, slug: str) -> tuple[Recipe, Closure]:
    known = []
    for project in checkout.projects():
        recipe = load_recipe(checkout, project)
        known += [patch.slug for patch in recipe.series.patches]
        if slug in known:
            return recipe, find_closure(checkout, recipe.series, pristine_of(checkout, recipe), slug)
    raise Refusal("unknown-slug", f"no patch is called {slug!r}{there_are(slug, known)}")


def _split(onto: str) -> tuple[Path, str]:
    folder, _, ref = onto.rpartition("@")
    if not folder:
        raise Refusal("export-clone", "no such folder", path=onto)
    return Path(folder), ref


def _body(
    checkout: Checkout, recipe: Recipe, closure: Closure, pristine: Path, template: str | None, evidence: bool
) -> str:
    pin = recipe.series.pin
    results = None
    if evidence:
        with working("the probe on the release"):
            before = run_probes(checkout, [closure.patch], pristine)[closure.patch.slug]
        with working("the probe on the closure alone"):
            after = prove_closure(checkout, recipe, pristine, closure)
        if not (before.red and after.green):
            raise Refusal("export-evidence", f"the probe is not red before and green after: {before}, {after}")
        results = before, after
    return pr_body(pin, closure, results, added_files(checkout, recipe, closure), template)
