"""What `make lint` asks of the types: it sees through our own imports, so that a nonsense call is an error."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """The tree of links that `make lint` makes, with one more module beside the packages."""
    (tmp_path / "sm120").mkdir()
    for part in ("integration", "kernels"):
        (tmp_path / "sm120" / part).symlink_to(ROOT / part)
    return tmp_path


def errors(links: Path, code: str) -> list[str]:
    (links / "caller.py").write_text("from sm120.integration.common.refusal import Refusal\n" + code)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(links / "cache"), "-m", "caller"],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(links)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return re.findall(r"^\S*caller\.py:\d+: error: .*\[(.+)\]$", result.stdout, re.MULTILINE)


def test_a_nonsense_call_is_rejected_and_a_good_one_is_not(links: Path) -> None:
    assert errors(links, 'Refusal(1, 2, 3, 4, 5, nonsense=6) + "text"\n')
    assert errors(links, 'raise Refusal("disk-full", "no space left", fix="make some")\n') == []


def test_lint_checks_the_packages_by_the_names_they_are_imported_by() -> None:
    said = subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    command = next(shlex.split(line) for line in said.splitlines() if "/mypy " in line)
    assert command[0] == "MYPYPATH=build/types"
    assert {command[at + 1] for at, word in enumerate(command) if word == "-p"} == {
        "sm120.integration",
        "sm120.kernels",
    }
