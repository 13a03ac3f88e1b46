"""Every real patch declares what it needs and leaves as commits that `git am` takes on the release."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.pin import Pin
from sm120.integration.upstream.closure import closure_tree, find_closure, undeclared
from sm120.integration.upstream.export import export_mbox, release_clone, upstream_tests

from .conftest import CHECKOUT
from .upstream_ci import complaints

RECIPES = {project: load_recipe(CHECKOUT, project) for project in CHECKOUT.projects()}
CASES = [(project, patch.slug) for project, recipe in RECIPES.items() for patch in recipe.series.patches]
# The wheel brings the layout of its CUDA sources along.
CPP_STYLES = {
    project: pristine_of(CHECKOUT, recipe) / recipe.series.pin.cpp_style
    for project, recipe in RECIPES.items()
    if recipe.series.pin.cpp_style
}
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
    overlay = {file.target for file in recipe.overlay}
    for path in expected.rglob("*"):
        if path.is_file():
            target = str(path.relative_to(expected))
            sent, tested = (clone / recipe.series.pin.upstream_path(target)).read_bytes(), path.read_bytes()
            if target in overlay and target.endswith(".py"):  # laid out anew for upstream, and nothing else
                assert ast.dump(ast.parse(sent)) == ast.dump(ast.parse(tested)), target
            elif target in overlay and target.endswith((".cu", ".cuh", ".h")):
                assert code_of(sent) == code_of(tested), target
            else:
                assert sent == tested, target
    assert_upstreams_hooks_agree(clone, recipe.series.pin)
    for patch in closure.patches:
        assert_tests_fit_the_harness(clone, recipe.series.pin, upstream_tests(CHECKOUT, recipe.series.pin, patch))
        assert_arguments_are_listed(clone, recipe.series.pin, patch)
    for path in files:
        assert_stands_alone(path)


def assert_arguments_are_listed(clone: Path, pin: Pin, patch: Patch) -> None:
    """Whatever field a patch adds to a group of arguments is named in upstream's table, once."""
    if pin.field_table is None:
        return
    table = (clone / pin.upstream_path(pin.field_table.file)).read_text()
    for file in patch.files:
        if file.path.startswith(pin.field_table.fields):
            for name in re.findall(r"^\+    (\w+): A\[", str(file), re.MULTILINE):
                assert table.count(f'    "{name}",\n') == 1, f"{name} is not in {pin.field_table.file}"


def code_of(source: bytes) -> tuple[list[str], str]:
    """C++ without what a layout may change: the order of includes, comments' line breaks, white space."""
    lines = [re.sub(r"//.*", "", line) for line in source.decode().splitlines()]
    included = sorted(line.strip() for line in lines if line.startswith("#include"))
    return included, "".join("".join(line.split()) for line in lines if not line.startswith("#include"))


def assert_upstreams_hooks_agree(clone: Path, pin: Pin) -> None:
    """Every file that is new, or that upstream's hooks had nothing to say of, is as they want it."""
    first = git(clone, "rev-list", "--max-parents=0", "HEAD").strip()
    names = git(clone, "diff", "--name-only", "--diff-filter=d", first, "HEAD").split()
    said = complaints(clone, pin, names, CPP_STYLES.get(pin.project))
    if said:  # upstream's own file may have been so before
        git(clone, "checkout", "--quiet", first)
        before = complaints(
            clone, pin, [name for name in names if (clone / name).is_file()], CPP_STYLES.get(pin.project)
        )
        git(clone, "checkout", "--quiet", "-")
        assert set(said) <= set(before), f"upstream's hooks would change {sorted(set(said) - set(before))}"
    for name in names:
        if name.endswith(".py"):
            compile((clone / name).read_text(), name, "exec")


def assert_tests_fit_the_harness(clone: Path, pin: Pin, tests: list[tuple[str, str]]) -> None:
    target, _ = tests[0]
    text = (clone / target).read_text()
    folders = {pin.test_folder, *(place.folder for place in pin.test_places)}
    assert any(target.startswith(f"{folder}/") for folder in folders), target
    for wheel in pin.test_renames:
        assert wheel not in text, f"{target} says {wheel}"
    for line in filter(None, [*pin.test_registration.splitlines(), *pin.test_footer.splitlines()]):
        assert line in text, f"{target} lacks {line!r}"
    for path, _ in tests:
        assert (clone / path).is_file(), f"{target} needs {path}"


def git(clone: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=clone, capture_output=True, text=True, check=True).stdout


def assert_stands_alone(path: Path) -> None:
    text = path.read_text(errors="replace").lower()
    for name in ("sm120-runtime", "sm120_runtime", "from sm120", "import sm120", "upstream-status", "sm120.kernels"):
        assert name not in text, f"{path.name} mentions {name}"
