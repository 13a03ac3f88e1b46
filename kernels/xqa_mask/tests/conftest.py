"""Fixtures of the kernel's tests; the folder goes on the path because its tests share two modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sm120.kernels._lib import host_library
from sm120.kernels.xqa_mask import op

sys.path.insert(0, str(Path(__file__).parent))
from xqa_mask_host_build import HostBuild


@pytest.fixture(scope="session")
def host_build() -> HostBuild:
    return HostBuild()


@pytest.fixture(params=sorted(host_library.SCHEDULES))
def host(request: pytest.FixtureRequest, host_build: HostBuild, monkeypatch: pytest.MonkeyPatch) -> HostBuild:
    """The op runs on this build, under each of the three schedules in turn."""
    host_build.schedule = request.param
    monkeypatch.setattr(op, "_host", lambda: host_build)
    return host_build
