"""The proof layer's import hook, in child processes: it acts once, in time, and refuses what is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.build.installed_runtime import PROOF_LAYER

UPSTREAM = """
import thing_before
VALUE = "upstream"
SEEN = thing_before.STATE
def call():
    return gone() if False else VALUE
class Pool:
    size = 1
"""


def run(tmp_path: Path, code: str, hook: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` under the proof layer with a module `thing` to import and `hook` as an extra hook file."""
    (tmp_path / "thing.py").write_text(UPSTREAM)
    (tmp_path / "thing_before.py").write_text("STATE = 'untouched'\n")
    (tmp_path / "extra.py").write_text("from stand_ins import after, before, replace\n" + hook)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PROOF_LAYER), str(tmp_path)]),
            "PROOF_EXTRA": str(tmp_path / "extra.py"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nothing_heavy_is_imported_at_start(tmp_path: Path) -> None:
    done = run(
        tmp_path, "import sys; print([m for m in ('torch', 'triton', 'sglang', 'numpy', 'sm120') if m in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_runs_before_and_after_the_module(tmp_path: Path) -> None:
    hook = """
@before("thing")
def prepare():
    import thing_before
    thing_before.STATE = "prepared"

@after("thing")
def change(module):
    assert replace(module, "VALUE", "stand-in") == "upstream"
"""
    done = run(tmp_path, "import thing, thing; print(thing.SEEN, thing.VALUE, thing.call())", hook)
    assert done.stdout == "prepared stand-in stand-in\n", done.stderr


def test_keeps_the_loader_that_reads_sources(tmp_path: Path) -> None:
    hook = '@after("thing")\ndef nothing(module):\n    pass\n'
    done = run(tmp_path, "import inspect, thing; print(inspect.getsource(thing.call).splitlines()[0])", hook)
    assert done.stdout == "def call():\n", done.stderr


@pytest.mark.parametrize(
    ("owner", "named"),
    [("module", "thing has no attribute 'LOST'"), ("module.Pool", "thing.Pool has no attribute 'LOST'")],
)
def test_refuses_a_missing_attribute(tmp_path: Path, owner: str, named: str) -> None:
    hook = f'@after("thing")\ndef change(module):\n    replace({owner}, "LOST", 1)\n'
    # `except ImportError` is how upstream guards optional imports: it must not swallow the refusal.
    done = run(tmp_path, "try:\n    import thing\nexcept ImportError:\n    print('swallowed')\n", hook)
    assert done.returncode == 1 and done.stdout == ""
    assert named in done.stderr and "proof: REFUSED" in done.stderr and "change" in done.stderr


def test_logs_which_stand_ins_ran(tmp_path: Path) -> None:
    hook = '@after("thing")\ndef nothing(module):\n    pass\n'
    log = tmp_path / "log"
    done = run(tmp_path, "import os, thing; print(os.getpid())", hook, PROOF_LOG=str(log))
    assert log.read_text() == f"{done.stdout.strip()} proof_extra_0 thing\n"


@pytest.mark.runtime
def test_a_hook_file_that_imports_torch_does_not_slip_past_the_stand_ins(tmp_path: Path) -> None:
    code = "import torch; here = torch.ones(1); print(here.pin_memory() is here)"
    done = run(tmp_path, code, "import torch\n")
    assert done.stdout == "True\n", done.stderr


def test_a_hook_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "print('alive')", PROOF_EXTRA=str(tmp_path / "nowhere.py"))
    # Python reports a failing sitecustomize and goes on; without the layer nothing can serve, so it must not.
    assert done.returncode != 0 and "nowhere.py" in done.stderr and "alive" not in done.stdout


STAND_INS = sorted(
    path.stem for path in (PROOF_LAYER / "stand_ins").glob("*.py") if path.stem not in ("__init__", "hook")
)


def test_readme_has_one_line_per_stand_in() -> None:
    lines = (PROOF_LAYER / "README.md").read_text().splitlines()
    named = sorted(line.split("`")[1] for line in lines if line.startswith("| `"))
    assert named == STAND_INS


@pytest.mark.parametrize("name", STAND_INS)
def test_stand_in_says_what_it_stands_in_for(name: str) -> None:
    text = (PROOF_LAYER / "stand_ins" / f"{name}.py").read_text()
    assert text.startswith('"""Stands in for: ')
    assert "sm120" not in text
