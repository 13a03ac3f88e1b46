"""What every kernel test gets: GPU tests skip with their reason, and Triton, where interpreted, is strict."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from sm120.kernels._lib.device import why_no_device

# Triton reads this when a kernel is decorated, so it has to be set before any test module is imported.
if why_no_device() is not None:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_device()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs an SM120 device: {reason}"))


@pytest.fixture(scope="session", autouse=True)
def _strict_triton():
    """While Triton is interpreted, a bf16 or fp8 operation that the interpreter gets wrong raises instead."""
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        yield
        return
    from sm120.kernels._lib.strict_interpreter import strict_interpreter

    with strict_interpreter():
        yield
