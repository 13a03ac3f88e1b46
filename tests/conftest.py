"""What all tests share: which must not run side by side, and which `make check` leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

# Tests that read the unpacked releases or run the installed runtime; and the fixtures that build a small checkout.
NEED_A_RUNTIME = ("differential", "runtime", "series", "served", "upstream_probes")
MAKE_A_CHECKOUT = ("mini", "built", "queue")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups, and before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers profile free memory and time themselves: one at a time, on one worker, whatever runs on the other."""
    for item in items:
        if item.get_closest_marker("served") is not None:
            item.add_marker(pytest.mark.xdist_group("served"))
        below = (
            item.path.relative_to(Path(__file__).parent).parts
            if item.path.is_relative_to(Path(__file__).parent)
            else ()
        )
        if set(below) & set(NEED_A_RUNTIME) or set(getattr(item, "fixturenames", ())) & set(MAKE_A_CHECKOUT):
            item.add_marker(pytest.mark.runtime)
