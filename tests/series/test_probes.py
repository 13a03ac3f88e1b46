"""Every patch's probe is red on the pristine release and green on the patched one."""

from __future__ import annotations

import pytest

from sm120.integration.identity import load_recipe
from sm120.integration.patch_file import Patch
from sm120.integration.probes import ProbeResult, run_probes
from sm120.integration.runtime import pristine_of
from sm120.integration.tree import patched_tree

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


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("probes")
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch.project}-{patch.slug}")
def test_red_on_pristine_green_on_patched(patch: Patch):
    before = results(patch.project, "pristine")[patch.slug]
    assert before.red, f"on the pristine release: {before}"
    after = results(patch.project, "patched")[patch.slug]
    assert after.green, f"on the patched tree: {after}"
