"""Every real patch declares what it needs and leaves as commits that `git am` takes on the release."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
from ruff import find_ruff_bin

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.series.pin import Pin
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
    overlay = {file.target for file in recipe.overlay}
    for path in expected.rglob("*"):
        if path.is_file():
            target = str(path.relative_to(expected))
            sent, tested = (clone / recipe.series.pin.upstream_path(target)).read_bytes(), path.read_bytes()
            if target in overlay and target.endswith(".py"):  # laid out anew for upstream, and nothing else
                assert ast.dump(ast.parse(sent)) == ast.dump(ast.parse(tested)), target
            else:
                assert sent == tested, target
    assert_upstream_would_not_reformat(clone, recipe.series.pin)
    for patch in closure.patches:
        assert_tests_fit_the_harness(clone, recipe.series.pin, upstream_tests(CHECKOUT, recipe.series.pin, patch))
    for path in files:
        assert_stands_alone(path)


def assert_upstream_would_not_reformat(clone: Path, pin: Pin) -> None:
    """Every Python file that is new or was laid out as upstream wants it is so now; overlay files keep their meaning."""
    first = git(clone, "rev-list", "--max-parents=0", "HEAD").strip()
    names = git(clone, "diff", "--name-only", "--diff-filter=d", first, "HEAD", "--", "*.py").split()
    new = {name: (clone / name).read_text() for name in names}
    misplaced = unstyled(clone, names, pin)
    if misplaced:  # upstream's own file may have been so before
        git(clone, "checkout", "--quiet", first)
        before = unstyled(clone, [name for name in misplaced if (clone / name).is_file()], pin)
        git(clone, "checkout", "--quiet", "-")
        assert misplaced <= before, f"upstream's hooks would change {sorted(misplaced - before)}"
    for name, text in new.items():
        compile(text, name, "exec")


def unstyled(clone: Path, names: list[str], pin: Pin) -> set[str]:
    """Those of `names` that upstream's formatter or import sorter would change."""
    style = pin.python_style
    common = ["--isolated", f"--line-length={style.line_length}", "--quiet", *names]
    party = ", ".join(f'"{name}"' for name in style.first_party)
    imports = ["check", "--select=I", f"--config=lint.isort.known-first-party=[{party}]", "--output-format=concise"]
    found = set()
    for command in (["format", "--check"], imports) if names else ():
        run = [find_ruff_bin(), *command, *common]
        result = subprocess.run(run, cwd=clone, capture_output=True, text=True)
        # Quiet says only that there is something; which files it is, is asked one by one then.
        if result.returncode != 0:
            one_by_one = [[*run[: -len(names)], name] for name in names]
            found |= {one[-1] for one in one_by_one if subprocess.run(one, cwd=clone, capture_output=True).returncode}
    return found


def assert_tests_fit_the_harness(clone: Path, pin: Pin, tests: list[tuple[str, str]]) -> None:
    target, _ = tests[0]
    text = (clone / target).read_text()
    folders = {pin.test_folder, *(place.folder for place in pin.test_places)}
    assert any(target.startswith(f"{folder}/") for folder in folders), target
    for wheel in pin.test_renames:
        assert wheel not in text, f"{target} says {wheel}"
    for line in filter(None, [*pin.test_registration.splitlines(), *pin.test_footer.splitlines()]):
        assert line in text, f"{target} lacks {line!r}"
    for name in re.findall(r'with_name\("(.+?)"\)', text) + [Path(path).name for path, _ in tests]:
        assert (clone / target).with_name(name).is_file(), f"{target} needs {name} beside it"


def git(clone: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=clone, capture_output=True, text=True, check=True).stdout


def assert_stands_alone(path: Path) -> None:
    text = path.read_text(errors="replace").lower()
    for name in ("sm120-runtime", "sm120_runtime", "from sm120", "import sm120", "upstream-status", "sm120.kernels"):
        assert name not in text, f"{path.name} mentions {name}"
