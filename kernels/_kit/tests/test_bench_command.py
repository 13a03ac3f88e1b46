"""No number without a device or with failing tests; a static record always; nothing for arguments that mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120.kernels._kit import bench_command

TIMES = [{"us_median": 1.5}]


def run(arguments: list[str], folder: Path) -> int:
    return bench_command.run(
        arguments, folder, static_records=lambda: [{"kernel": "k"}], measure=lambda: TIMES, report=lambda rows: "table"
    )


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    return tmp_path


def test_times_are_printed_when_the_tests_pass(kernel: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench_command, "why_no_device", lambda: None)
    (kernel / "tests" / "test_it.py").write_text("def test_it(): pass")
    assert run([], kernel) == 0
    assert capsys.readouterr().out == "us_median\n     1.50\n"
    assert run(["--json"], kernel) == 0
    assert json.loads(capsys.readouterr().out) == TIMES


def test_a_table_has_a_column_a_name_and_says_once_what_all_rows_share() -> None:
    rows = [{"batch": batch, "us_median": time, "device": "RTX"} for batch, time in ((1, 0.504), (256, 12.0))]
    assert bench_command.table(rows).splitlines() == [
        "device: RTX",
        "batch  us_median",
        "    1       0.50",
        "  256      12.00",
    ]
    assert bench_command.table(rows[:1]).splitlines() == ["batch  us_median  device", "    1       0.50     RTX"]
    assert bench_command.table([]) == ""


def test_no_number_when_a_test_fails(kernel: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench_command, "why_no_device", lambda: None)
    (kernel / "tests" / "test_it.py").write_text("def test_it(): assert False")
    assert run([], kernel) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "tests fail; no number is printed" in captured.err


def test_no_number_without_a_device(kernel: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench_command, "why_no_device", lambda: "no NVIDIA device")
    assert run([], kernel) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "nothing to measure on: no NVIDIA device" in captured.err


def test_a_static_record_needs_no_device(kernel: Path, capsys) -> None:
    assert run(["--static"], kernel) == 0
    assert json.loads((kernel / "static_roofline.json").read_text())["kernels"] == [{"kernel": "k"}]
    assert capsys.readouterr().out == "table\n"


def test_other_arguments_are_refused(kernel: Path, capsys) -> None:
    assert run(["--fast"], kernel) == 2
    assert "needs nothing, --json or --static" in capsys.readouterr().err
