"""What upstream has taken works on the pristine pin: a regression there is noticed at the next bump."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120.integration.identity import load_recipe
from sm120.integration.probes import run_files
from sm120.integration.runtime import pristine_of
from sm120.integration.upstream.ledger import load_ledger

from .conftest import CHECKOUT

FOLDER = CHECKOUT.root / "tests" / "upstream_probes"
PROBES = sorted(FOLDER.glob("*/test_*.py"))
_results: dict = {}


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("upstream-probes")
@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.stem)
def test_passes_on_the_pristine_release(path: Path):
    project = path.parent.name
    if project not in _results:
        files = {one.stem: one for one in PROBES if one.parent.name == project}
        _results[project] = run_files(CHECKOUT, files, pristine_of(CHECKOUT, load_recipe(CHECKOUT, project)))
    result = _results[project][path.stem]
    assert result.green, result


def test_the_ledger_is_sound_and_every_probe_guards_a_row():
    guarded = {row.probe for row in load_ledger(CHECKOUT)}
    retired = {str(path.relative_to(CHECKOUT.root)) for path in PROBES}
    assert retired <= guarded | {""}, sorted(retired - guarded)
