"""Every patch's probe is red on the pristine release and green on the patched one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.build.tree import patched_tree
from sm120.integration.series.patch_file import Patch
from sm120.integration.upstream.probes import ProbeResult, run_files, run_probes

from .conftest import CHECKOUT

RECIPES = {project: load_recipe(CHECKOUT, project) for project in CHECKOUT.projects()}
PATCHES = [patch for recipe in RECIPES.values() for patch in recipe.series.patches]
_results: dict[tuple[str, str], dict[str, ProbeResult]] = {}


def results(project: str, state: str) -> dict[str, ProbeResult]:
    """All probes of a project on one tree, run once."""
    if (project, state) not in _results:
        recipe = RECIPES[project]
        tree = pristine_of(CHECKOUT, recipe)
        if state == "patched":
            tree = patched_tree(tree, recipe.series, recipe.overlay, CHECKOUT.build / "trees" / recipe.name)
        _results[project, state] = run_probes(CHECKOUT, recipe.series.patches, tree)
    return _results[project, state]


@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("probes")
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch.project}-{patch.slug}")
def test_red_on_pristine_green_on_patched(patch: Patch):
    before = results(patch.project, "pristine")[patch.slug]
    assert before.red, f"on the pristine release: {before}"
    after = results(patch.project, "patched")[patch.slug]
    assert after.green, f"on the patched tree: {after}"


@pytest.mark.timeout(120)
def test_a_red_probe_costs_no_more_where_pytest_takes_itself_to_be_on_ci(tmp_path: Path, monkeypatch):
    """There it spelled out the difference of two long lists: more than ten minutes for these."""
    text = "def test_never():\n    rows = [list(range(row % 33 + 1)) for row in range(99)]\n    assert [[0] * 33] * 99 == rows\n"
    for name in ("CI", "BUILD_NUMBER"):
        assert not os.environ.get(name), "the root conftest.py takes these out for every test"
        monkeypatch.setenv(name, "true")
    with tempfile.TemporaryDirectory(dir=CHECKOUT.build) as name:  # reports name files below the checkout
        probe = Path(name, "test_long_lists.py")
        probe.write_text(text)
        result = run_files(CHECKOUT, {"long-lists": probe}, tmp_path)["long-lists"]
    assert result.red, result
