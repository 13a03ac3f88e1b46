"""Closure: the smallest set of earlier patches that a patch needs, found by applying and proved by its probe.

Two needs have to be told apart. A patch needs another to *apply* (their hunks share lines), which is found by leaving
patches out and applying the rest to a clean tree. And it may need another to *work* without sharing a line, which only
`Requires:` can say and only the probe can prove.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.build.identity import Recipe
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.apply import applies_with_drift, copy_touched
from sm120.integration.series.overlay import load_overlay, place_overlay
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.series import Series
from sm120.integration.upstream.probes import ProbeResult, run_probes


@dataclass(frozen=True)
class Closure:
    """Earlier patches that `patch` needs, in series order."""

    patch: Patch
    to_apply: list[Patch]
    to_work: list[Patch]
    """Declared in `Requires:` (or required by one of `to_apply`) and not needed to apply."""
    patches: list[Patch]
    """Everything to apply, in order, `patch` last."""


def find_closure(checkout: Checkout, series: Series, pristine: Path, slug: str) -> Closure:
    """The closure of `slug` on the pinned tree.

    Raises:
        Refusal: `unknown-slug`; `closure-none` when the patch does not apply even with all earlier patches.
    """
    patch = series.patch(slug)
    earlier = series.patches[: series.patches.index(patch)]
    needed = _needed_to_apply(checkout, series, pristine, patch, earlier)
    declared = _required(series, [patch, *needed])
    to_work = [other for other in earlier if other.slug in declared and other not in needed]
    together = [other for other in earlier if other in needed or other in to_work]
    return Closure(patch, needed, to_work, [*together, patch])


def undeclared(series: Series, closure: Closure) -> list[str]:
    """Slugs that the patch needs to apply and that `Requires:` (followed through) does not name."""
    named = _required(series, [closure.patch])
    return [patch.slug for patch in closure.to_apply if patch.slug not in named]


def closure_tree(
    checkout: Checkout, recipe: Recipe, pristine: Path, closure: Closure, folder: Path, *, only_touched: bool = False
) -> Path:
    """A copy of the release (or only of the files that the closure touches) with only the closure applied."""
    if only_touched:
        copy_touched(pristine, closure.patches, folder)
    else:
        shutil.copytree(pristine, folder, symlinks=True)
    _apply_all(checkout, recipe.series, folder, closure.patches)
    return folder


def prove_closure(checkout: Checkout, recipe: Recipe, pristine: Path, closure: Closure) -> ProbeResult:
    """Run the patch's probe on a clean tree that holds only the closure."""
    with tempfile.TemporaryDirectory(prefix="sm120-closure-", dir=checkout.build) as name:
        tree = closure_tree(checkout, recipe, pristine, closure, Path(name) / "tree")
        return run_probes(checkout, [closure.patch], tree)[closure.patch.slug]


def _needed_to_apply(
    checkout: Checkout, series: Series, pristine: Path, patch: Patch, earlier: list[Patch]
) -> list[Patch]:
    """Leave out one earlier patch after another, newest first, and keep those without which it no longer applies."""
    related = _sharing_files(patch, earlier)
    if not _applies(checkout, series, pristine, [*related, patch]):
        raise Refusal("closure-none", "does not apply with all earlier patches", path=patch.path)
    kept = related
    for candidate in reversed(related):
        fewer = [other for other in kept if other is not candidate]
        if _applies(checkout, series, pristine, [*fewer, patch]):
            kept = fewer
    return kept


def _sharing_files(patch: Patch, earlier: list[Patch]) -> list[Patch]:
    """Earlier patches that touch a file of `patch`, or of one that does; nothing else can matter for applying."""
    files = set(patch.touched)
    found: list[Patch] = []
    for other in reversed(earlier):
        if files.intersection(other.touched):
            files.update(other.touched)
            found.insert(0, other)
    return found


def _required(series: Series, patches: list[Patch]) -> set[str]:
    found: set[str] = set()
    todo = [slug for patch in patches for slug in patch.requires]
    while todo:
        slug = todo.pop()
        if slug not in found:
            found.add(slug)
            todo += series.patch(slug).requires
    return found


def _applies(checkout: Checkout, series: Series, pristine: Path, patches: list[Patch]) -> bool:
    with tempfile.TemporaryDirectory(prefix="sm120-closure-") as name:
        tree = Path(name)
        copy_touched(pristine, patches, tree)
        try:
            _apply_all(checkout, series, tree, patches)
        except Refusal:
            return False
        return True


def _apply_all(checkout: Checkout, series: Series, tree: Path, patches: list[Patch]) -> None:
    kernels = list(dict.fromkeys(name for patch in patches for name in patch.kernels))
    place_overlay(tree, load_overlay(checkout.kernels, kernels, series.project))
    for patch in patches:
        result = applies_with_drift(tree, patch.path)
        if result.returncode != 0:
            last = (result.stderr.strip().splitlines() or ["refused"])[-1]
            raise Refusal("patch-conflict", last, path=patch.path)
