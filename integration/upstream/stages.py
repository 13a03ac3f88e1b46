"""Every patch of a series as a change with the files before and after it, made on the pinned release."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.common.checkout import Checkout
from sm120.integration.series.apply import apply_patch
from sm120.integration.series.overlay import load_overlay, place_overlay
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.pin import Artifact
from sm120.integration.series.series import Series, load_series
from sm120.integration.upstream.closure import Closure, find_closure
from sm120.integration.upstream.ladder import Change
from sm120.integration.upstream.releases import Release, snapshot


@dataclass(frozen=True)
class Stage:
    """One patch with what it changes and what it needs."""

    patch: Patch
    change: Change
    closure: Closure
    overlay: dict[str, bytes]
    """Overlay files of the closure, by their place in the tree."""


@dataclass(frozen=True)
class Staged:
    """A series with its stages, and the pinned release's own files."""

    series: Series
    stages: list[Stage]
    pinned: dict[str, bytes]
    touched: list[str]

    def stage(self, slug: str) -> Stage:
        return next(stage for stage in self.stages if stage.patch.slug == slug)


def pinned_release(series: Series) -> Release:
    """Any wheel of the pin; they agree on the files that patches touch."""
    artifact: Artifact = series.pin.artifacts[0]
    for other in series.pin.artifacts:
        if other.python in ("cp311", "py3") and other.machine in ("x86_64", "any"):
            artifact = other
    return Release(version=series.pin.version, file=artifact.file, sha256=artifact.sha256)


def stage_series(checkout: Checkout, project: str) -> Staged:
    """Apply the series of `project` to the touched files of its pin, keeping each patch's before and after."""
    series = load_series(checkout.patches / project)
    touched = sorted({name for patch in series.patches for name in patch.touched})
    pinned = snapshot(checkout, pinned_release(series), touched)
    stages = []
    with tempfile.TemporaryDirectory(prefix="sm120-stages-") as name:
        pristine, tree = Path(name) / "pristine", Path(name) / "tree"
        pinned.write(pristine)
        pinned.write(tree)
        pristine.mkdir(exist_ok=True)
        tree.mkdir(exist_ok=True)
        place_overlay(tree, load_overlay(checkout.kernels, series.kernels, project))
        for patch in series.patches:
            before = _read(tree, patch.touched)
            apply_patch(tree, patch)
            change = Change(patch.diff, before, _read(tree, patch.touched))
            closure = find_closure(checkout, series, pristine, patch.slug)
            kernels = list(dict.fromkeys(name for needed in closure.patches for name in needed.kernels))
            overlay = load_overlay(checkout.kernels, kernels, project)
            stages.append(Stage(patch, change, closure, {f.target: f.source.read_bytes() for f in overlay}))
    return Staged(series, stages, pinned.files, touched)


def _read(tree: Path, names: list[str]) -> dict[str, bytes | None]:
    return {name: (tree / name).read_bytes() if (tree / name).is_file() else None for name in names}
