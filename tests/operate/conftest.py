"""An endpoint that a test controls."""

import importlib.util
from pathlib import Path

import pytest

from sm120.integration.qualify.endpoint import Endpoint

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
