"""What upstream has taken works on the pristine pin, and a guard would notice if it did not at the next bump."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from sm120.integration.identity import load_recipe
from sm120.integration.probes import ProbeResult, run_files
from sm120.integration.runtime import pristine_of
from sm120.integration.upstream.ledger import load_ledger

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
_results: dict[str, dict[str, ProbeResult]] = {}


def run(project: str, files: list[Path]) -> dict[str, ProbeResult]:
    pristine = pristine_of(CHECKOUT, load_recipe(CHECKOUT, project))
    return run_files(CHECKOUT, {path.stem: path for path in files}, pristine)


def run_undone(monkeypatch, project: str, mutants: list) -> set[str]:
    """The test functions that fail when these fixes are undone; none may break before it is called."""
    monkeypatch.setenv("PROOF_EXTRA", str(FOLDER / "mutants.py"))
    monkeypatch.setenv("MUTANTS", ",".join(mutant.row for mutant in mutants))
    probes = {row.name: row.probe for row in load_ledger(CHECKOUT)}
    results = run(project, sorted({CHECKOUT.root / probes[mutant.row] for mutant in mutants}))
    assert not [result for result in results.values() if result.errors], results
    return {line.split(":")[0].split("[")[0] for result in results.values() for line in result.failures}


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("upstream-probes")
@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.stem)
def test_passes_on_the_pristine_release(path: Path):
    project = path.parent.name
    if project not in _results:
        _results[project] = run(project, [one for one in PROBES if one.parent.name == project])
    result = _results[project][path.stem]
    assert result.green, result


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("upstream-probes")
@pytest.mark.parametrize("project", PROJECTS)
def test_an_undone_fix_is_noticed_by_its_guards_and_no_other(monkeypatch, project):
    mutants = [mutant for mutant in MUTANTS if mutant.project == project]
    expected = frozenset().union(*(mutant.guards for mutant in mutants))
    assert run_undone(monkeypatch, project, mutants) == expected


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("upstream-probes")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.row)
def test_a_fix_undone_alone_is_noticed_by_its_own_guards(monkeypatch, mutant):
    assert run_undone(monkeypatch, mutant.project, [mutant]) == mutant.guards


def test_the_ledger_is_sound_and_every_guarded_row_has_an_undoing():
    rows = load_ledger(CHECKOUT)
    assert {str(path.relative_to(CHECKOUT.root)) for path in PROBES} == {row.probe for row in rows if row.probe}
    assert sorted(mutant.row for mutant in MUTANTS) == sorted(row.name for row in rows if row.probe)
