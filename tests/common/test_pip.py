"""pip is run in one way, and its reason is found in whatever it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.common import pip
from sm120.integration.common.refusal import Refusal


def answer(returncode: int, stdout: str = "", stderr: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(["pip"], returncode, stdout, stderr)


def test_it_runs_for_this_interpreter_or_for_another(monkeypatch, tmp_path):
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: ran.append(command) or answer(0))
    pip.pip("download", "x", doing="fetching x", where=tmp_path)
    pip.pip("install", "x", doing="installing x", where=tmp_path, python=Path("/other/python"))
    assert ran[0][:3] == ran[1][:3] == [sys.executable, "-m", "pip"]
    assert "--python=/other/python" in ran[1] and not any(word.startswith("--python") for word in ran[0])


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_is_called_so(monkeypatch, tmp_path, stream):
    full = answer(1, **{stream: "ERROR: Could not install: [Errno 28] No space left on device\n"})
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: full)
    with pytest.raises(Refusal, match=r"\[disk-full\] .*no space left while fetching x"):
        pip.pip("download", "x", doing="fetching x", where=tmp_path)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            answer(1, stderr="WARNING: retrying\nERROR: no version\nERROR: nothing found\nhint: later\n"),
            "nothing found",
        ),
        (answer(1, stdout="ERROR: said elsewhere\n"), "said elsewhere"),
        (answer(1, stderr="Traceback\nKeyError: 'x'\n"), "KeyError: 'x'"),
        (answer(1), "pip gave no reason"),
    ],
    ids=["errors", "on-stdout", "a-crash", "silence"],
)
def test_its_reason_is_found(said, wanted):
    assert pip.reason(said) == wanted


def test_the_real_one_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    missing = pip.pip("download", "-d", str(tmp_path), "no-such-thing==1", doing="trying", where=tmp_path)
    assert missing.returncode == 1 and "no-such-thing==1" in pip.reason(missing)
