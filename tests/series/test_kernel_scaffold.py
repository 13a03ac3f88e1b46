"""`sm120 kernel new` makes a module whose tests pass as they stand and which a patch can ship."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ruff import find_ruff_bin

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.kernel_lint import lint_kernels
from sm120.integration.series.kernel_scaffold import new_kernel
from sm120.integration.series.overlay import load_overlay, place_overlay

CHECKOUT = find_checkout(Path(__file__).parent)
pytestmark = pytest.mark.runtime
NAME = "rows_of_a_rather_long_name"


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A kernels folder in a package of its own, which has this checkout's library and template."""
    folder = tmp_path / "sm120" / "kernels"
    folder.mkdir(parents=True)
    for name in ("_lib", "_kit", "_ptx"):
        (folder / name).symlink_to(CHECKOUT.kernels / name)
    for name in ("__init__.py", "conftest.py"):
        shutil.copyfile(CHECKOUT.kernels / name, folder / name)
    shutil.copytree(CHECKOUT.kernels / "_template", folder / "_template", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_copy_is_the_template_under_another_name(kernels: Path) -> None:
    files = new_kernel(kernels, NAME)
    template = [path for path in (kernels / "_template").rglob("*") if path.is_file()]
    assert len(files) == len(template) > 8
    for path in files:
        assert "_template" not in path.read_text() and "kernel new" not in path.read_text(), path
    command = [find_ruff_bin(), "check", "--quiet", f"--config={CHECKOUT.root / 'pyproject.toml'}", str(kernels / NAME)]
    assert subprocess.run(command).returncode == 0
    command[1] = "format"
    assert subprocess.run([*command, "--check"]).returncode == 0


def test_a_patch_ships_it(kernels: Path, tmp_path: Path) -> None:
    new_kernel(kernels, NAME)
    toml = kernels / NAME / "kernel.toml"
    assert lint_kernels(kernels, [SimpleNamespace(project="sglang", patches=[])]) == [
        f"{NAME}: no patch names it, so nothing of it ships"
    ]
    toml.write_text(toml.read_text().replace("sglang = []", 'sglang = ["scale-rows"]'))
    patch = SimpleNamespace(slug="scale-rows", kernels=[NAME])
    assert lint_kernels(kernels, [SimpleNamespace(project="sglang", patches=[patch])]) == []
    place_overlay(tmp_path / "tree", load_overlay(kernels, [NAME], "sglang"))
    placed = tmp_path / "tree" / "sglang" / "kernels" / "ops" / f"{NAME}.py"
    assert placed.read_bytes() == (kernels / NAME / "triton_scale_rows.py").read_bytes()


REFUSED = {
    "capitals": ("Rows", "kernel-name"),
    "a_path": ("../rows", "kernel-name"),
    "a_keyword": ("lambda", "kernel-name"),
    "the_library": ("_lib", "kernel-name"),
    "nothing": ("", "kernel-name"),
    "taken": ("taken", "kernel-exists"),
}


@pytest.mark.parametrize(("name", "code"), REFUSED.values(), ids=REFUSED)
def test_another_name_is_refused_and_nothing_is_made(kernels: Path, name: str, code: str) -> None:
    (kernels / "taken").mkdir()
    before = sorted(kernels.rglob("*"))
    with pytest.raises(Refusal) as refused:
        new_kernel(kernels, name)
    assert refused.value.code == code and sorted(kernels.rglob("*")) == before


def test_a_copy_that_fails_leaves_nothing(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernels / "_template" / "notes.bin").write_bytes(b"\xff\xfe")
    before = sorted(kernels.rglob("*"))
    with pytest.raises(UnicodeDecodeError):
        new_kernel(kernels, NAME)
    assert sorted(kernels.rglob("*")) == before


# Python starts with this in the copy: its own sm120 package stands in front of this checkout's.
SITE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
"""


@pytest.mark.slow
@pytest.mark.runtime
def test_its_tests_pass_as_they_stand(kernels: Path) -> None:
    new_kernel(kernels, NAME)
    package = kernels.parent.parent
    (package / "sitecustomize.py").write_text(SITE)
    (package / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: device\n  interpreter: interpreted\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", NAME]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(package)}
    done = subprocess.run(command, cwd=kernels, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "failed" not in done.stdout
