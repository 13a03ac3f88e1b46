"""Make the sibling module of problems importable under importlib import mode."""

import sys
from pathlib import Path

import pytest

from sm120.kernels._lib.device import why_no_device
from sm120.kernels.recover_ssm import triton_recover

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pays for every program, so it gets as few as on the CPU; one test takes the device's tile."""
    if why_no_device() is not None:
        monkeypatch.setattr(triton_recover, "_tile", lambda V, device: (V, 1))
