"""Run the tests of in_runtime/, which import the patched packages, on what the runtime has installed."""

from functools import cache
from pathlib import Path

import pytest

from sm120.integration.build.runtime import site_packages
from sm120.integration.common.checkout import find_checkout
from sm120.integration.upstream.probes import ProbeResult, run_files

CHECKOUT = find_checkout(Path(__file__).parent)
FILES = {file.stem.removeprefix("test_"): file for file in (Path(__file__).parent / "in_runtime").glob("test_*.py")}


@cache
def results() -> tuple[dict[str, ProbeResult], list[str]]:
    """All files in one process, as importing the packages takes longer than most of them; and what was skipped there."""
    skipped: list[str] = []
    return run_files(CHECKOUT, FILES, site_packages(CHECKOUT.runtime), say_skipped=skipped.append), skipped


@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("in_runtime")
@pytest.mark.parametrize("name", sorted(FILES))
def test_holds_in_the_patched_runtime(name):
    found, why = results()
    result = found[name]
    assert not (result.failed or result.errors) and (result.passed or result.skipped), result
    if result.skipped:  # the machine lacks something; that is said, and no failure
        pytest.skip(f"{result.passed} passed; {result.skipped} skipped; all that were: {'; '.join(why)}")
