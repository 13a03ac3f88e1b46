"""The plan of the house: few rooms, one above the other, no file name twice, tests where their module is."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
INTEGRATION = ROOT / "integration"
# From the ground up: a room imports what lies below it, never what lies above, and only cli.py sees all of them.
ORDER = ("common", "series", "build", "serve", "prove", "measure", "upstream", "cli")
ROOMS = {*ORDER, "locks"} - {"cli"}
FLOORS = 7
# Tests of no single module: a lock, the machine, upstream's own checks, the stand-ins.
OF_NO_MODULE = {"test_bare_machine", "test_cuda_lock", "test_cpu_layer"}
OF_NO_MODULE |= {"test_torchvision_stand_in", "test_published_tokens"}


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


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> the modules that it imports, names in a string (a table of commands, `python -m`) or calls by its path."""
    by_name = {name_of(path): path for path in INTEGRATION.rglob("*.py") if "cpu_layer" not in path.parts}
    found = {name: set(names_in(path.read_text(), by_name)) - {name} for name, path in by_name.items()}
    found["cli"] |= {entry.replace(":", ".").rpartition(".")[0] for entry in commands()}
    return found


def name_of(path: Path) -> str:
    parts = path.relative_to(INTEGRATION).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_in(text: str, known: Iterable[str]) -> list[str]:
    """Modules of `known` that `text` imports, wherever the import stands, or names in a string."""
    named: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            named += [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named += re.findall(r"\bsm120\.integration\.[\w.]+", node.value)
    ours = {name.removeprefix("sm120.integration.") for name in named if name.startswith("sm120.integration.")}
    return [name for name in known if name and name in ours]


def commands() -> list[str]:
    """Where the commands of cli.py are: `room.module:function`."""
    return re.findall(r'"([\w.]+:\w+)"', (INTEGRATION / "cli.py").read_text())


def between(part_of) -> dict[str, set[str]]:
    """`arrows`, with every module taken for the part of the house that it lies in."""
    drawn: dict[str, set[str]] = defaultdict(set)
    for name, wanted in arrows().items():
        drawn[part_of(name)] |= {part_of(other) for other in wanted} - {part_of(name)}
    return drawn


def room_of(name: str) -> str:
    return name.split(".")[0]


def folder_of(name: str) -> str:
    is_package = (INTEGRATION / name.replace(".", "/")).is_dir()
    return name if is_package or "." not in name else name.rpartition(".")[0]


def floors(drawn: dict[str, set[str]]) -> dict[str, int]:
    """How deep each part lies: what imports nothing of ours is on floor 1. A circle raises CycleError."""
    at: dict[str, int] = {}
    for name in TopologicalSorter(drawn).static_order():
        at[name] = 1 + max((at[other] for other in drawn.get(name, ())), default=0)
    return at


def test_imports_go_downwards():
    upwards = {
        f"{name} -> {other}"
        for name, wanted in arrows().items()
        for other in wanted
        if name and ORDER.index(room_of(other)) > ORDER.index(room_of(name))
    }
    assert upwards == set()


def test_nothing_is_in_a_circle():
    assert floors(arrows())["common.refusal"] == 1
    assert floors(between(folder_of))["common"] == 1  # the folders within rooms, too


def test_the_house_is_seven_floors_high():
    assert max(floors(between(room_of)).values()) <= FLOORS


def test_every_command_is_an_arrow_from_the_table():
    assert len(commands()) > 20 and {entry.split(":")[0] for entry in commands()} <= arrows()["cli"]


def test_an_arrow_is_seen_in_every_form():
    text = """
from sm120.integration.common import git as environment
from sm120.integration.series.pin import Pin
def late():
    import sm120.integration.build.tree
    run([python, "-c", "from sm120.integration.cli import main; main()"])
"""
    known = ["common.git", "series.pin", "build.tree", "cli", "series.series", "common.refusal"]
    assert names_in(text, known) == known[:4]


def test_a_test_is_named_after_its_module():
    for room in sorted(ROOMS):
        names = {f"test_{path.stem}" for path in modules(INTEGRATION / room)}
        tests = {path.stem for path in (ROOT / "tests" / room).glob("test_*.py")}
        assert tests - names - OF_NO_MODULE == set(), room


def test_every_module_has_its_test_or_a_line_that_says_where_it_is_tested():
    rows = re.findall(r"(?m)^\| (`[^|]+`) \| `([^`]+)` \|$", (ROOT / "tests" / "README.md").read_text())
    elsewhere = [module for said, _ in rows for module in re.findall(r"`([^`]+)`", said)]
    alone = {
        str(path.relative_to(INTEGRATION))
        for room in ROOMS
        for path in modules(INTEGRATION / room)
        if not (ROOT / "tests" / room / f"test_{path.stem}.py").is_file()
    }
    assert sorted(elsewhere) == sorted(alone)
    assert [test for _, test in rows if not (ROOT / "tests" / test).is_file()] == []


def test_the_places_that_the_readme_names_are_there():
    rows = re.findall(r"(?m)^\| .+ \| `([\w/.]+)` \| `([\w/.]+)` \|$", (INTEGRATION / "README.md").read_text())
    assert len(rows) > 10
    missing = [
        place for place, test in rows if not ((INTEGRATION / place).exists() and (ROOT / "tests" / test).is_file())
    ]
    assert missing == []


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\S+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


def test_git_pip_and_the_full_disk_have_one_room_each():
    """Each of them has ways to fail that are easily forgotten where it is run once more."""
    only_in = {
        r'\["git", (?!"--version")': "git.py",
        r'"-m", "pip"': "pip.py",
        r"ENOSPC|No space left": "disk.py",
    }
    for pattern, name in only_in.items():
        assert [path.name for path in modules() if re.search(pattern, path.read_text())] == [name], pattern


def test_what_kernels_run_with_needs_no_kit():
    """A kernel and `_lib` load without the compilers, interpreters and simulators that their tests and benches use."""
    kernels = ROOT / "kernels"
    running = [
        path
        for path in kernels.rglob("*.py")
        if not {"tests", "_kit", "_ptx"} & set(path.parts) and path.name not in ("bench.py", "conftest.py")
    ]
    assert [path for path in running if "kernels._kit" in path.read_text()] == []
    assert {path.stem for path in (kernels / "_lib").glob("*.py")} == {"__init__", "capability", "contracts", "device"}


def test_nothing_asks_the_library_of_kernels_for_what_is_in_the_kit():
    kit = "|".join(path.stem for path in (ROOT / "kernels" / "_kit").glob("[a-z]*.py"))
    wanted = re.compile(rf"kernels\._lib\.({kit})\b|from sm120\.kernels\._lib import [^\n]*\b({kit})\b")
    found = [path for folder in ("kernels", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in found if wanted.search(path.read_text())] == []
