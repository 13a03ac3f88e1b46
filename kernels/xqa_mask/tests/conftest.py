"""Fixtures of the kernel's tests; the folder goes on the path because its tests share two modules."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from sm120.kernels._kit import host_library
from sm120.kernels._kit.simulated_device import launched

sys.path.insert(0, str(Path(__file__).parent))
from xqa_mask_host_build import HostBuild


@pytest.fixture(scope="session")
def host_build() -> HostBuild:
    return HostBuild()


@pytest.fixture(params=sorted(host_library.SCHEDULES))
def host(request: pytest.FixtureRequest, host_build: HostBuild) -> HostBuild:
    """The build under each of the three schedules in turn."""
    host_build.schedule = request.param
    return host_build


@pytest.fixture
def host_modules(host_build: HostBuild) -> dict[str, object]:
    fill = host_build.xqa_mask_fill
    if os.environ.get("SM120_DEVICE") == "ptx":
        from xqa_mask_ptx import xqa_mask_fill as fill
    module = types.SimpleNamespace(xqa_mask_fill=launched(fill))
    return {"xqa_mask": lambda: module}
