"""Debian's quilt makes the same tree of the series."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe

from ..mini_checkout import (
    HOOK,
    add_kernel,
    snapshot,
)


@pytest.mark.skipif(shutil.which("quilt") is None, reason="needs Debian's quilt")
def test_real_quilt_gives_the_same_tree(built, tmp_path):
    add_kernel(built)
    built.patch("hook", {"alpha/core.py": HOOK, "alpha/new.py": "new = 1\n", "alpha/tool.sh": None}, Kernels="packing")
    assert built.sm120("series", "refresh").returncode == 0
    recipe = load_recipe(built.checkout, "alpha")
    assert built.build().returncode == 0
    ours = built.checkout.build / "trees" / recipe.name
    theirs = quilt_tree(built.checkout, recipe, built.pristine, tmp_path / "quilt")
    assert snapshot(ours) == snapshot(theirs)


def quilt_tree(checkout, recipe, pristine: Path, folder: Path) -> Path:
    """Apply the overlay (as a generated first patch) and the series with Debian's quilt."""
    from sm120.integration.series.quilt import export_quilt

    shutil.copytree(pristine, folder, symlinks=True)
    export_quilt(recipe.series, recipe.overlay, folder / "patches")
    environment = os.environ | {"QUILT_PATCHES": "patches", "QUILTRC": "-"}
    result = subprocess.run(
        ["quilt", "push", "-a", "--fuzz=0"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "offset" not in result.stdout
    shutil.rmtree(folder / ".pc")
    shutil.rmtree(folder / "patches")
    return folder
