"""What all tests share: which of them must not run side by side."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers profile free memory and time themselves: one at a time, on one worker, whatever runs on the other."""
    for item in items:
        if item.get_closest_marker("served") is not None:
            item.add_marker(pytest.mark.xdist_group("served"))
