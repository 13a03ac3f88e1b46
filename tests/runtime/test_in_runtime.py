"""Run the tests of in_runtime/, which import the patched packages, on what the runtime has installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.checkout import find_checkout
from sm120.integration.probes import tree_environment
from sm120.integration.runtime import site_packages

CHECKOUT = find_checkout(Path(__file__).parent)
FILES = sorted((Path(__file__).parent / "in_runtime").glob("test_*.py"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("test_"))
def test_holds_in_the_patched_runtime(file):
    environment = tree_environment(CHECKOUT, site_packages(CHECKOUT.runtime))
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", str(file.parent)]
    done = subprocess.run([*command, str(file)], env=environment, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    if skipped := re.search(r"^SKIPPED .*", done.stdout, re.MULTILINE):
        pytest.skip(skipped[0])
