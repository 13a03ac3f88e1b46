"""The canonical form of a series: regenerate every patch from the trees before and after it.

A patch in canonical form comes out byte for byte as it went in, so that a bump or a rebase changes only what
really changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sm120.integration.common.git import git
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.apply import applies_with_drift, copy_touched
from sm120.integration.series.overlay import OverlayFile, place_overlay
from sm120.integration.series.patch_file import SEPARATOR, Patch
from sm120.integration.series.series import Series, write_patches

DIFF = ("diff", "--no-color", "--no-ext-diff", "--full-index", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/")


@contextmanager
def sparse_repository(series: Series, pristine: Path, overlay: list[OverlayFile]) -> Iterator[Path]:
    """A throw-away git repository that holds only the files that the series touches, with the overlay committed."""
    with tempfile.TemporaryDirectory(prefix="sm120-series-") as name:
        folder = Path(name)
        git(folder, "init", "--quiet", "--initial-branch=series")
        created = {target for patch in series.patches for target in patch.created}
        placed = {file.target for file in overlay}
        for patch in series.patches:
            for target in patch.touched:
                if target not in created | placed and not (pristine / target).is_file():
                    raise Refusal("patch-conflict", f"changes {target}, which the tree lacks", path=patch.path)
        copy_touched(pristine, series.patches, folder)
        place_overlay(folder, overlay)
        git(folder, "add", "--all", "--force")
        git(folder, "commit", "--quiet", "--allow-empty", "--message", "pristine and overlay")
        yield folder


def canonical_patches(series: Series, pristine: Path, overlay: list[OverlayFile]) -> Iterator[tuple[Patch, str]]:
    """Each patch with the text that it should have on this tree; line offsets are followed, fuzz is not.

    Raises:
        Refusal: `patch-conflict` for the first patch that no longer applies.
    """
    with sparse_repository(series, pristine, overlay) as folder:
        for patch in series.patches:
            result = applies_with_drift(folder, patch.path)
            if result.returncode != 0:
                raise Refusal(
                    "patch-conflict", result.stderr.strip().splitlines()[-1], path=patch.path, line=patch.diff_line
                )
            git(folder, "add", "--all", "--force")
            git(folder, "commit", "--quiet", "--allow-empty", "--message", patch.slug)
            yield patch, patch.header + SEPARATOR + git(folder, *DIFF, "HEAD^", "HEAD")


def refresh(series: Series, pristine: Path, overlay: list[OverlayFile]) -> list[str]:
    """Rewrite every patch that is not in canonical form; returns the slugs that changed.

    Nothing is written unless the whole series applies.
    """
    texts = list(canonical_patches(series, pristine, overlay))
    new = {patch.slug: text.encode(errors="surrogateescape") for patch, text in texts}
    changed = {patch.slug: new[patch.slug] for patch, _ in texts if patch.path.read_bytes() != new[patch.slug]}
    write_patches(series.folder, changed)
    return list(changed)
