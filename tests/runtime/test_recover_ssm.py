"""Run the sequence tests inside the patched runtime: they import sglang."""

import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.checkout import find_checkout
from sm120.integration.probes import tree_environment
from sm120.integration.runtime import site_packages

CHECKOUT = find_checkout(Path(__file__).parent)
TESTS = Path(__file__).parent / "in_runtime" / "test_recover_sequences.py"


@pytest.mark.timeout(900)
def test_sequences_hold_in_the_patched_runtime():
    environment = tree_environment(CHECKOUT, site_packages(CHECKOUT.runtime))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(TESTS.parent),
        str(TESTS),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
