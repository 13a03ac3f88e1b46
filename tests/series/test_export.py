"""Every real patch declares what it needs and leaves as commits that `git am` takes on the release."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sm120.integration.identity import load_recipe
from sm120.integration.runtime import pristine_of
from sm120.integration.upstream.closure import closure_tree, find_closure, undeclared
from sm120.integration.upstream.export import export_mbox, release_clone, upstream_tests

from .conftest import CHECKOUT

RECIPES = {project: load_recipe(CHECKOUT, project) for project in CHECKOUT.projects()}
CASES = [(project, patch.slug) for project, recipe in RECIPES.items() for patch in recipe.series.patches]
IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A Contributor"), ("EMAIL", "contributor@example.org"))
}


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """The one who exports is the author; tests bring their own so that no machine's configuration matters."""
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.mark.parametrize(("project", "slug"), CASES, ids=[slug for _, slug in CASES])
def test_exported_commits_apply_and_stand_alone(project, slug, tmp_path):
    recipe = RECIPES[project]
    pristine = pristine_of(CHECKOUT, recipe)
    closure = find_closure(CHECKOUT, recipe.series, pristine, slug)
    assert undeclared(recipe.series, closure) == []

    files = export_mbox(CHECKOUT, recipe, closure, pristine, tmp_path / "mbox")
    assert len(files) == len(closure.patches)
    clone = release_clone(recipe, pristine, closure.patches, tmp_path / "clone")
    result = subprocess.run(["git", "am", *files], cwd=clone, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr

    expected = closure_tree(CHECKOUT, recipe, pristine, closure, tmp_path / "tree", only_touched=True)
    for path in expected.rglob("*"):
        if path.is_file():
            target = str(path.relative_to(expected))
            assert (clone / recipe.series.pin.upstream_path(target)).read_bytes() == path.read_bytes(), target
    for target, _ in upstream_tests(CHECKOUT, recipe.series.pin, closure.patch):
        compile((clone / target).read_text(), target, "exec")
    for path in files:
        assert_stands_alone(path)


def assert_stands_alone(path: Path) -> None:
    text = path.read_text(errors="replace").lower()
    for name in ("sm120-runtime", "sm120_runtime", "from sm120", "import sm120", "upstream-status", "sm120.kernels"):
        assert name not in text, f"{path.name} mentions {name}"
