"""A wrong twin is wrong where it was told to be, and a mutation that does not apply is not a twin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sm120.kernels._kit import mutated_module


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "twice.py"
    path.write_text("def twice(x):\n    return x + x\n")
    return path


def test_a_twin_differs_in_the_edited_place_only(source: Path, tmp_path: Path) -> None:
    assert mutated_module.load(source, tmp_path).twice(3) == 6
    assert mutated_module.load(source, tmp_path, ("x + x", "x * x"), ("return ", "return -")).twice(3) == -9
    assert source.read_text().endswith("return x + x\n")


@pytest.mark.parametrize(("old", "count"), [("x - x", 0), ("x", 3)])
def test_a_mutation_must_match_exactly_once(old: str, count: int, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{old!r} occurs {count} times in twice.py, needs 1")):
        mutated_module.load(source, tmp_path, (old, "y"))
