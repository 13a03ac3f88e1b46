"""The verdict over conformance rows, and clear errors for wrong names and for a Python without NIXL."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from sm120.integration.common.refusal import Refusal
from sm120.integration.prove.nixl_check.nixl_cases import CASES as RUNNABLE
from sm120.integration.prove.nixl_check.nixl_commands import show
from sm120.integration.prove.nixl_check.nixl_matrix import CASES, QUEUES, Matrix, Row, run_matrix


def matrix(*failed: tuple[str, str]) -> Matrix:
    rows = [
        Row(queue=queue, case=case, result="fail" if (case, queue) in failed else "pass", detail="")
        for case in CASES
        for queue in QUEUES
    ]
    return Matrix(version="0", rows=rows)


def test_every_case_can_be_run_and_is_described():
    assert set(RUNNABLE) == set(CASES)


@pytest.mark.parametrize(
    "failed, recommended",
    [
        ([], "uring"),
        ([("release-in-flight", "uring")], "uring"),  # a patch makes it harmless
        ([("no-space", "uring")], "aio"),
        ([("no-space", "uring"), ("device-error", "aio")], "posix_aio"),
        ([("no-space", queue) for queue in QUEUES], None),
    ],
)
def test_recommendation(failed, recommended):
    found = matrix(*failed)
    assert found.recommended() == recommended
    assert (f'use_{recommended} = "true"' in found.setting()) if recommended else found.setting() == ""


def test_a_queue_that_nothing_is_known_of_is_not_recommended():
    found = matrix()
    for row in found.rows:
        if row.queue != "aio":
            row.result = "not run"
    assert found.recommended() == "aio"
    for row in found.rows:
        row.result = "not run"
    assert found.recommended() is None and found.setting() == ""
    console = Console(width=200, file=io.StringIO())
    show(found, console)
    assert "No case could be run here" in console.file.getvalue() and "Recommended" not in console.file.getvalue()


def test_wrong_names_are_refused(tmp_path):
    with pytest.raises(Refusal, match=r"\[nixl-case\] no case is called 'shortread'; did you mean short-read"):
        run_matrix(sys.executable, tmp_path, cases=["shortread"])
    with pytest.raises(Refusal, match=r"\[nixl-case\] no queue is called 'io_uring'; did you mean uring"):
        run_matrix(sys.executable, tmp_path, queues=("io_uring",))


def test_python_without_nixl_is_refused(tmp_path):
    (tmp_path / "nixl.py").write_text("raise ImportError('no NIXL here')\n")
    with pytest.raises(Refusal, match=r"\[nixl-unusable\] .*has no usable NIXL"):
        run_matrix(sys.executable, tmp_path, cases=["round-trip"], pythonpath=str(tmp_path))


def test_a_crash_and_a_hang_are_rows(tmp_path):
    """The child of a case is what fails, not the suite: shown with a NIXL that is not one."""
    package = tmp_path / "nixl"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_api.py").write_text(
        "import os, signal, time\n"
        "def nixl_agent_config(**_): pass\n"
        "class nixl_agent:\n"
        "    def __init__(self, *_): pass\n"
        "    def create_backend(self, name, params):\n"
        "        if 'use_uring' in params: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        if 'use_aio' in params: time.sleep(60)\n"
        "        raise RuntimeError('no such queue')\n"
    )
    found = run_matrix(sys.executable, tmp_path, cases=["round-trip"], timeout=2, pythonpath=str(tmp_path))
    assert [row.detail for row in found.rows] == ["killed by SIGSEGV", "hangs for 2 s", "RuntimeError: no such queue"]
    assert found.recommended() is None
    assert subprocess.run(["ls", str(tmp_path)], capture_output=True, text=True).stdout.split() == ["nixl"]
