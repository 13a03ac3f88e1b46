"""Run the sequence tests inside the patched runtime: they import sglang, which this environment need not have."""

import subprocess
from pathlib import Path

import pytest
from sm120.integration.prove.runtime import Runtime

TESTS = Path(__file__).parent / "in_runtime" / "test_recover_sequences.py"


@pytest.mark.timeout(900)
def test_sequences_hold_in_the_patched_runtime():
    runtime = Runtime.from_environment()
    command = [str(runtime.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(TESTS.parent)]
    done = subprocess.run(
        [*command, str(TESTS)], env=runtime.environment(), capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
