"""An endpoint that a test controls."""

import importlib.util
from pathlib import Path

import pytest

from sm120.integration.measure.endpoint import Endpoint
from sm120.integration.measure.prefill import measure_restore, measure_restores

_SPEC = importlib.util.spec_from_file_location("endpoint_double", Path(__file__).with_name("endpoint_double.py"))
double = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(double)


@pytest.fixture
def behaviour():
    return double.Behaviour()


@pytest.fixture
def endpoint(behaviour, tmp_path):
    with double.endpoint_double(behaviour) as url:
        yield Endpoint(url, tmp_path / "requests.jsonl", timeout=20)


@pytest.fixture(autouse=True)
def nothing_to_settle(monkeypatch):
    """The double has written everything by the time it answers."""
    for measure in (measure_restore, measure_restores):
        monkeypatch.setitem(measure.__kwdefaults__, "settle", 0.0)
