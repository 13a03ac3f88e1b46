"""Wider forms of what the runtime's classes are held to; their files in in_runtime/ do not start with test_."""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of, site_packages
from sm120.integration.common.checkout import find_checkout
from sm120.integration.upstream.probes import tree_environment

CHECKOUT = find_checkout(Path(__file__).parent)
FOLDER = Path(__file__).parent / "in_runtime"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def outcomes(tree: Path, file: str, chosen: str = "") -> dict[str, str]:
    """What became of each chosen test of `file`, by its name, with `tree` first on the import path."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(FOLDER)]
        command += [f"--junitxml={report}", "-k", chosen, str(FOLDER / file)]
        done = subprocess.run(
            command, env=tree_environment(CHECKOUT, tree), capture_output=True, text=True, timeout=580
        )
        assert report.is_file(), f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
        cases = ElementTree.parse(report).iter("testcase")
        return {case.get("name", ""): case[0].tag if len(case) else "passed" for case in cases}


def test_verify_without_states_passes_upstream_s_kit():
    said = outcomes(site_packages(CHECKOUT.runtime), "upstream_gdn_kit.py", "recover")
    assert len(said) == 5 and set(said.values()) == {"passed"}, said


def test_what_passes_of_upstream_s_kit_on_the_release_passes_on_the_patched_tree():
    pristine = pristine_of(CHECKOUT, load_recipe(CHECKOUT, "sglang"))
    release = outcomes(pristine, "upstream_gdn_kit.py", "not recover")
    patched = outcomes(site_packages(CHECKOUT.runtime), "upstream_gdn_kit.py", "not recover")
    assert len(release) == 25 and set(release.values()) == {"passed"}, release
    assert patched == release


def test_the_pools_allocate_what_the_planner_says():
    said = outcomes(site_packages(CHECKOUT.runtime), "pool_bytes.py")
    assert len(said) == 17 and set(said.values()) == {"passed"}, said
