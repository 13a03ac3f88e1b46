"""The exported series passes what upstream's CI does to it: collecting, and running each test without our stand-ins."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.build.tree import patched_tree

from .conftest import CHECKOUT
from .upstream_ci import lay_out, run, sets_interpreter

RECIPE = load_recipe(CHECKOUT, "sglang")
SLUGS = [patch.slug for patch in RECIPE.series.patches]
# Suites of upstream's test/run_suite.py that our tests are for.
SUITES = {"base-a-test-cpu"}


@pytest.fixture(scope="module")
def exported():
    """The release with the whole series, and its tests, as upstream lays them out."""
    CHECKOUT.build.mkdir(exist_ok=True)
    # Beside the trees, so that it can link to their files.
    with tempfile.TemporaryDirectory(prefix="upstream-ci-", dir=CHECKOUT.build) as name:
        tree = patched_tree(
            pristine_of(CHECKOUT, RECIPE), RECIPE.series, RECIPE.overlay, CHECKOUT.build / "trees" / RECIPE.name
        )
        yield Path(name), dict(zip(SLUGS, lay_out(RECIPE, tree, Path(name)), strict=True))


def collected(folder: Path):
    """What upstream's own collector makes of the files that its runner would hand it."""
    path = folder / "python/sglang/test/ci/ci_register.py"
    spec = importlib.util.spec_from_file_location("ci_register", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = sorted((folder / "test/registered").rglob("*.py"))
    return module.collect_tests([str(file) for file in files if file.name not in ("conftest.py", "__init__.py")])


@pytest.mark.xdist_group("upstream-ci")
def test_the_collector_takes_every_file_that_is_exported(exported):
    folder, files = exported
    registries = collected(folder)
    assert {Path(one.filename) for one in registries} == set(files.values())
    assert {one.effective_suite for one in registries} <= SUITES


@pytest.mark.xdist_group("upstream-ci")
def test_a_module_beside_the_tests_would_stop_the_collector(exported, tmp_path):
    """So that the test above can fail: this is what exports once did."""
    folder, _ = exported
    (tmp_path / "python/sglang/test").mkdir(parents=True)
    shutil.copytree(folder / "python/sglang/test/ci", tmp_path / "python/sglang/test/ci")
    shutil.copytree(folder / "test", tmp_path / "test")
    (tmp_path / "test/registered/unit/gdn_rig.py").write_text("")
    with pytest.raises(ValueError, match="No CI registry found in .*gdn_rig"):
        collected(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("interpreted", [True, False], ids=["asks-for-the-interpreter", "without-it"])
def test_the_exported_tests_pass_without_stand_ins(exported, interpreted):
    """In two processes for speed: one variable decides for a whole process whether Triton's kernels are interpreted."""
    folder, files = exported
    chosen = [path for path in files.values() if sets_interpreter(path) == interpreted]
    assert len(chosen) > 4
    status, said = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *chosen], folder, timeout=840)
    assert status == 0, said[-6000:]


@pytest.mark.xdist_group("upstream-ci")
def test_without_nixl_its_tests_say_why_they_are_skipped(exported):
    folder, files = exported
    chosen = [path for path in files.values() if "pytestmark = needs_nixl" in path.read_text()]
    assert len(chosen) >= 9
    status, said = run(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *chosen], folder, nixl=False)
    assert status == 0 and "NIXL is not installed" in said and " passed" not in said, said[-3000:]
    status, said = run(
        [files["hicache-nixl-drain"]], folder, nixl=False
    )  # started as a script, it imports itself first
    assert status == 0 and "skipped" in said, said[-3000:]


@pytest.mark.long
@pytest.mark.parametrize("slug", SLUGS)
def test_each_exported_test_passes_as_upstream_runs_it(exported, slug):
    folder, files = exported
    status, said = run([files[slug]], folder)
    assert status == 0 and "passed" in said, said[-6000:]
