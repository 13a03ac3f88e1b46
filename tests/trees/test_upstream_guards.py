"""What upstream has taken works on the pristine pin, and a guard would notice if it did not at the next bump."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.upstream.ledger import load_ledger
from sm120.integration.upstream.probes import ProbeResult, read_report, tree_environment

from .conftest import CHECKOUT

FOLDER = CHECKOUT.root / "tests" / "upstream_probes"
PROBES = sorted(FOLDER.glob("*/test_*.py"))
PROJECTS = sorted({path.parent.name for path in PROBES})


def _load_mutants():
    spec = importlib.util.spec_from_file_location("upstream_mutants", FOLDER / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.MUTANTS


MUTANTS = _load_mutants()
_runs: dict[str, tuple[dict[str, ProbeResult], dict[str, ProbeResult]]] = {}


def run_twice(project: str, mutants: list, files: list[Path]) -> tuple[dict[str, ProbeResult], dict[str, ProbeResult]]:
    """What the guards do on the pristine release, and what they do there with these fixes undone."""
    named = {path.stem: path for path in files}
    pristine = pristine_of(CHECKOUT, load_recipe(CHECKOUT, project))
    with tempfile.TemporaryDirectory(prefix="sm120-guards-") as name:
        reports = [Path(name) / "plain.xml", Path(name) / "undone.xml"]
        command = [
            sys.executable,
            FOLDER / "run_twice.py",
            *reports,
            ",".join(mutant.row for mutant in mutants),
            *files,
        ]
        environment = tree_environment(CHECKOUT, pristine)
        result = subprocess.run(
            list(map(str, command)), cwd=CHECKOUT.root, env=environment, capture_output=True, text=True
        )
        assert all(report.is_file() for report in reports), (result.stdout + result.stderr)[-3000:]
        plain, undone = (read_report(report, named, CHECKOUT.root) for report in reports)
    return plain, undone


def runs(project: str) -> tuple[dict[str, ProbeResult], dict[str, ProbeResult]]:
    if project not in _runs:
        mutants = [mutant for mutant in MUTANTS if mutant.project == project]
        _runs[project] = run_twice(project, mutants, [path for path in PROBES if path.parent.name == project])
    return _runs[project]


def red(results: dict[str, ProbeResult]) -> set[str]:
    """The test functions that fail; none may break before it is called."""
    assert not [result for result in results.values() if result.errors], results
    return {line.split(":")[0].split("[")[0] for result in results.values() for line in result.failures}


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("upstream-probes")
@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.stem)
def test_passes_on_the_pristine_release(path: Path):
    result = runs(path.parent.name)[0][path.stem]
    assert result.green, result


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("upstream-probes")
@pytest.mark.parametrize("project", PROJECTS)
def test_undone_fixes_are_noticed_by_their_guards_and_no_other(project):
    expected = frozenset().union(*(mutant.guards for mutant in MUTANTS if mutant.project == project))
    assert red(runs(project)[1]) == expected


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("upstream-probes")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.row)
def test_a_fix_undone_alone_is_noticed_by_its_own_guards(mutant):
    probes = {row.name: row.probe for row in load_ledger(CHECKOUT)}
    _, undone = run_twice(mutant.project, [mutant], [CHECKOUT.root / probes[mutant.row]])
    assert red(undone) == mutant.guards


def test_the_ledger_is_sound_and_every_guarded_row_has_an_undoing():
    rows = load_ledger(CHECKOUT)
    assert {str(path.relative_to(CHECKOUT.root)) for path in PROBES} == {row.probe for row in rows if row.probe}
    assert sorted(mutant.row for mutant in MUTANTS) == sorted(row.name for row in rows if row.probe)
