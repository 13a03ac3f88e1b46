"""The same series for people who use quilt: a patches folder with the overlay as a generated first patch."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from sm120.integration.common.git import git
from sm120.integration.series.canonical import DIFF
from sm120.integration.series.overlay import OverlayFile, place_overlay
from sm120.integration.series.series import Series

OVERLAY_PATCH = "overlay.patch"


def export_quilt(series: Series, overlay: list[OverlayFile], folder: Path) -> None:
    """Write `folder/series` and the patches it names; `quilt push -a --fuzz=0` then makes our patched tree."""
    folder.mkdir(parents=True)
    names = [f"{patch.slug}.patch" for patch in series.patches]
    if overlay:
        names.insert(0, OVERLAY_PATCH)
        (folder / OVERLAY_PATCH).write_text(_overlay_diff(overlay))
    for patch in series.patches:
        shutil.copyfile(patch.path, folder / f"{patch.slug}.patch")
    (folder / "series").write_text("".join(f"{name}\n" for name in names))


def _overlay_diff(overlay: list[OverlayFile]) -> str:
    with tempfile.TemporaryDirectory(prefix="sm120-overlay-") as name:
        tree = Path(name)
        git(tree, "init", "--quiet")
        git(tree, "commit", "--quiet", "--allow-empty", "--message", "before")
        place_overlay(tree, overlay)
        git(tree, "add", "--all", "--force")
        git(tree, "commit", "--quiet", "--message", "overlay")
        return git(tree, *DIFF, "HEAD^", "HEAD")
