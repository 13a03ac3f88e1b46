"""`make` installs anew when what it installs changes, and nothing else makes it do so."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = "kernels/mrope/fused_qk_norm_mrope.cuh"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Makefile and what it may look at, beside an environment that is newer than all of it."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("Makefile", "pyproject.toml", SOURCE):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    (root / "build" / "dev").mkdir(parents=True)
    for stamp in (".installed", ".tested", ".toolkit"):
        (root / "build" / "dev" / stamp).touch()
    return root


def installs(root: Path, *arguments: str) -> int:
    """How many installations `make test` would do; nothing is run."""
    # Under `make test` the outer make's own options would be this one's too.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    command = ["make", "--dry-run", *arguments, "test"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.count("pip install")


def test_nothing_is_installed_when_nothing_changed(installed: Path) -> None:
    assert installs(installed) == 0
    assert installs(installed, "--what-if", SOURCE) == 0, "an editable install sees it as it is"


def test_other_requirements_are_installed_before_anything_is_tested(installed: Path) -> None:
    assert installs(installed, "--what-if", "pyproject.toml") >= 2, "the install, and what the tests need on top of it"


def narrowed(root: Path, *arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")} | variables
    command = ["make", "--dry-run", *arguments, "test"]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60).stdout


def test_one_kernel_or_one_patch_is_tested_where_it_is_asked_for(installed: Path) -> None:
    everything = narrowed(installed)
    assert "--durations" in everything and "probe" not in everything
    kernel, patch = narrowed(installed, "KERNEL=qsa"), narrowed(installed, "PATCH=some-slug")
    assert "pytest -n 2 kernels/qsa\n" in kernel and "--durations" not in kernel
    assert "probe some-slug\n" in patch and "closure some-slug --prove\n" in patch and "-m pytest" not in patch
    assert narrowed(installed, KERNEL="qsa", PATCH="x") == everything, (
        "a variable that happens to be set narrows nothing"
    )
