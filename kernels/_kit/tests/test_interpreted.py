"""Which process interprets Triton: this one where there is no device, another one where kernels have to be compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.kernels._lib import device

KERNELS = Path(__file__).parents[2]

COLLECT = """
import json, os, sys
import pytest
from sm120.kernels._lib import device
device.why_no_device = lambda *_, **__: None  # as where there is one
seen = {}
class Collected:
    def pytest_collection_finish(self, session):
        from sm120.kernels.recover_ssm import triton_recover
        items = [item for item in session.items if item.get_closest_marker("interpreter")]
        seen["kernel"] = type(triton_recover._verify_kernel).__name__
        seen["skipped"] = [item.nodeid for item in items if not item.get_closest_marker("skip")]
        seen["found"] = len(items)
status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Collected()])
print(json.dumps(seen | {"status": int(status), "variable": os.environ.get("TRITON_INTERPRET")}))
"""


def test_collecting_beside_a_device_lets_triton_compile() -> None:
    """No file turns the interpreter on for the others: device tests would then pass without running on the device."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COLLECT, str(KERNELS)]
    done = subprocess.run(command, cwd=KERNELS.parent, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["status"] == 0 and seen["variable"] is None and seen["kernel"] == "JITFunction"
    assert seen["found"] > 50 and seen["skipped"] == []


@pytest.mark.skipif(device.why_no_device() is not None, reason="interpreted in this process: there is no device")
def test_beside_a_device_they_run_in_a_process_of_their_own() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "interpreter", "-p", "no:cacheprovider", str(KERNELS)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=KERNELS.parent, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]
