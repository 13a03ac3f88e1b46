"""The plan of the house: few rooms, no file name twice, imports absolute, tests where their module is."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
INTEGRATION = ROOT / "integration"
ROOMS = {"common", "series", "build", "serve", "prove", "measure", "upstream", "locks"}
# Tests of no single module: a lock, the machine, what every command refuses, upstream's own checks, the stand-ins.
OF_NO_MODULE = {"test_bare_machine", "test_cuda_lock", "test_refusals", "test_cpu_layer"}
OF_NO_MODULE |= {"test_torchvision_stand_in"}


def modules(folder: Path = INTEGRATION) -> list[Path]:
    return [path for path in folder.rglob("*.py") if "cpu_layer" not in path.parts and path.name != "__init__.py"]


def test_there_are_eight_rooms_and_the_table_of_commands():
    folders = {path.name for path in INTEGRATION.iterdir() if path.is_dir() and any(path.rglob("*.[pt][yx]*"))}
    assert folders - {"__pycache__"} == ROOMS
    assert {path.name for path in INTEGRATION.glob("*.py")} == {"__init__.py", "cli.py"}


def test_no_file_name_is_there_twice():
    assert [name for name, count in Counter(path.name for path in modules()).items() if count > 1] == []


def test_imports_are_absolute():
    relative = [path for path in modules() if re.search(r"^\s*from \.", path.read_text(), re.MULTILINE)]
    assert relative == []


def test_the_ground_floor_imports_no_other_room():
    wanted = re.compile(r"from sm120\.integration\.(?!common\b)\w+")
    assert [path for path in modules(INTEGRATION / "common") if wanted.search(path.read_text())] == []


def test_serving_imports_nothing_that_proves_or_measures():
    wanted = re.compile(r"from sm120\.integration\.(prove|measure|upstream|cli)\b")
    assert [path for path in modules(INTEGRATION / "serve") if wanted.search(path.read_text())] == []


def test_a_test_is_named_after_its_module():
    for room in sorted(ROOMS):
        names = {f"test_{path.stem}" for path in modules(INTEGRATION / room)}
        tests = {path.stem for path in (ROOT / "tests" / room).glob("test_*.py")}
        assert tests - names - OF_NO_MODULE == set(), room


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\S+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
