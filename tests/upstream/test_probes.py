"""A report of pytest is read file by file: what a neighbour did is never counted as a probe's own result."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream import probes
from sm120.integration.upstream.probes import ProbeResult, read_report

FOLDER = "tests/probes/alpha"
FAILURE = '<failure message="assert 1 == 2">E  assert 1 == 2</failure>'
ERROR = '<error message="collection failure">E   ImportError: no such module</error>'


def case(classname: str, name: str, file: str | None, outcome: str = "") -> str:
    where = f' file="{file}"' if file else ""
    return f'<testcase classname="{classname}" name="{name}"{where} time="0.1">{outcome}</testcase>'


def read(tmp_path: Path, *cases: str, names: tuple[str, ...]) -> dict[str, ProbeResult]:
    report = tmp_path / "report.xml"
    report.write_text(f'<testsuites><testsuite name="pytest">{"".join(cases)}</testsuite></testsuites>')
    return read_report(report, {name: tmp_path / FOLDER / f"test_{name}.py" for name in names}, tmp_path)


def test_a_name_that_begins_like_another_is_another_file(tmp_path):
    """`state` passes on the pristine release; that `state_overlap` fails there must not make it red."""
    for with_files in (True, False):  # pytest leaves the attribute out where it does not know the place
        found = read(
            tmp_path,
            *(
                case(f"tests.probes.alpha.{module}", name, f"{FOLDER}/{module.split('.')[0]}.py" * with_files, outcome)
                for module, name, outcome in (
                    ("test_state", "test_plain", ""),
                    ("test_state.TestShapes", "test_of_a_class", ""),
                    ("test_state_overlap", "test_next", FAILURE),
                    ("test_state_overlap.TestShapes", "test_of_a_class", FAILURE),
                )
            ),
            names=("state", "state_overlap"),
        )
        assert found["state"] == ProbeResult(2, 0, 0, 0, ()), f"{with_files=}"
        assert (found["state_overlap"].passed, found["state_overlap"].failed) == (0, 2), f"{with_files=}"


def test_a_file_that_does_not_import_is_its_own_error_only(tmp_path):
    module = "tests.probes.alpha.test_state"
    found = read(
        tmp_path,
        case("", module, f"{FOLDER}/test_state.py", ERROR),
        case(f"{module}_overlap", "test_next", f"{FOLDER}/test_state_overlap.py"),
        names=("state", "state_overlap"),
    )
    assert found["state"] == ProbeResult(0, 0, 1, 0, (f"{module}: ImportError: no such module",))
    assert found["state_overlap"].green


def test_a_test_that_took_its_process_down_is_counted(tmp_path):
    """Reported by the path, without a class."""
    crashed = f"{FOLDER}/test_state.py::test_plain"
    found = read(tmp_path, case("", crashed, None, FAILURE), names=("state", "state_overlap"))
    assert found["state"].red and found["state_overlap"] == ProbeResult(0, 0, 0, 0, ())


def test_no_gpu_is_visible_to_a_probe(tmp_path, monkeypatch):
    """A probe says the same on a machine with a card."""
    monkeypatch.setattr(probes, "link_test_layer", lambda checkout: tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    environment = probes.tree_environment(Checkout(tmp_path), tmp_path / "tree")
    assert environment["CUDA_VISIBLE_DEVICES"] == "" and environment["TRITON_INTERPRET"] == "1"


def test_a_probe_that_is_not_there_is_refused(built):
    """Nothing was run: that must not read as red and green."""
    result = built.sm120("probe", "frist-change")
    assert result.returncode == 2 and "[unknown-slug]" in result.stderr, result.stdout + result.stderr
    assert "did you mean first-change?" in result.stderr


def test_an_environment_without_pytest_is_named_with_what_brings_it(tmp_path, monkeypatch):
    """Every command that probes comes through here: probe, closure --prove, export, matrix and bump --probes."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pytest" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(probes.sys, "executable", str(python))
    monkeypatch.setattr(probes, "tree_environment", lambda checkout, tree: {})
    probe = tmp_path / "test_first.py"
    probe.touch()
    with pytest.raises(Refusal, match=r"(?s)\[probe-crashed\].*fix: make build/dev/\.installed brings it"):
        probes.run_files(Checkout(tmp_path), {"first": probe}, tmp_path)
