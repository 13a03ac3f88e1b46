"""Device tests of all kernels as PTX: the short set of `make test`; `sm120 ptx KERNEL` runs all of a kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.kernels._kit.compilers import missing_nvcc
from sm120.kernels._lib.device import why_no_device

KERNELS = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.xdist_group("ptx"),
    pytest.mark.skipif(why_no_device() is None, reason="a device is here, and runs these tests itself"),
]
# Each with a twin that must be rejected, where the device tests have one.
SHORT = {
    "recover_ssm": "outputs_match_float64 or bf16_inputs or accepts_one_token_more",
    "qsa": "(test_attention and (-65-1- or -2051-8-)) or test_block_topk[1-4097]",
    "mrope": "token_counts or temporal_row",
    "xqa_mask": "on_device",
}


@pytest.mark.parametrize("kernel", SHORT)
def test_device_tests_pass_as_ptx(kernel):
    if kernel in ("mrope", "xqa_mask") and missing_nvcc() is not None:
        pytest.skip(str(missing_nvcc()))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "gpu"]
    command += ["-k", SHORT[kernel], str(KERNELS / kernel / "tests")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=KERNELS.parent,
        env=environment | {"SM120_DEVICE": "ptx"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "device tests ran as PTX for sm_120a, rung ptx" in done.stdout
