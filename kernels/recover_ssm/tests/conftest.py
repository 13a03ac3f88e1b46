"""Make the sibling module of problems importable under importlib import mode."""

import os
import sys
from pathlib import Path

import pytest

from sm120.kernels._lib.device import why_no_device

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _wide_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pays for every program, so it gets as few as on the CPU; one test takes the device's tile."""
    interpreted = why_no_device() is not None and os.environ.get("SM120_DEVICE") != "ptx"
    if request.node.get_closest_marker("gpu") is not None and interpreted:
        from sm120.kernels.recover_ssm import triton_recover  # not for the reference's tests, which need no Triton

        monkeypatch.setattr(triton_recover, "_tile", lambda V, device: (V, 1))
