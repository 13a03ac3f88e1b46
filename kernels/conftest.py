"""What every kernel test gets: a device or a simulated one, and Triton that is strict where it is interpreted."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import pytest

from sm120.kernels._lib.device import why_no_device

# Triton reads this when a kernel is decorated, so it has to be set before any test module is imported.
if why_no_device() is not None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

SIMULATED = ("device", "simulated")
AS_PTX = ("device", "ptx")


def runs_ptx() -> bool:
    """True with SM120_DEVICE=ptx: on the simulated device, kernels run as the PTX that the compiler made for sm_120a."""
    return os.environ.get("SM120_DEVICE") == "ptx" and why_no_device() is not None


@pytest.fixture(scope="session", autouse=True)
def _strict_triton() -> Iterator[None]:
    """While Triton is interpreted, a bf16 or fp8 operation that the interpreter gets wrong raises instead."""
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        yield
        return
    from sm120.kernels._kit.strict_interpreter import strict_interpreter

    with strict_interpreter():
        yield


@pytest.fixture
def host_modules() -> dict[str, Callable[..., Any]]:
    """What SGLang's JIT would build for this kernel, as CPU builds by name; a kernel with CUDA sources overrides it."""
    return {}


@pytest.fixture
def simulated_device(host_modules: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`cuda` names a simulated device, the shipped entries run on CPU builds of their kernels, benches do few rounds."""
    from sm120.kernels._kit import cold_timing
    from sm120.kernels._kit.shipped_entry import simulated_jit
    from sm120.kernels._kit.simulated_device import simulated_device as simulate

    monkeypatch.setattr(cold_timing, "measure", functools.partial(cold_timing.measure, warm_up=0, rounds=1))
    with simulated_jit(host_modules), _triton_kernels(), simulate():
        yield


def _triton_kernels() -> AbstractContextManager[object]:
    """What runs the Triton kernels of the simulated device: the interpreter, or their PTX."""
    if not runs_ptx():
        return nullcontext()
    from sm120.kernels._ptx.triton_launch import triton_as_ptx

    return triton_as_ptx()


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> None:
    """A test marked `gpu` has a device whose kernels are compiled, or, where there is none, the simulated one."""
    if request.node.get_closest_marker("gpu") is None:
        return
    if why_no_device() is not None:
        request.getfixturevalue("simulated_device")
        request.node.user_properties.append(AS_PTX if runs_ptx() else SIMULATED)
        return
    interpreted = interpreted_kernels()
    assert not interpreted, f"a device is here, and these would run in Triton's interpreter: {interpreted}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for item in items:
        if item.get_closest_marker("interpreter") is not None:
            item.add_marker(pytest.mark.skip(reason="Triton compiles here: _kit/tests/test_interpreted.py runs it"))


def interpreted_kernels() -> list[str]:
    """The Triton kernels of this project that were imported to be interpreted."""
    return sorted(
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if name.startswith("sm120.kernels.") and ".tests." not in name
        for attribute, value in vars(module).items()
        if type(value).__name__ == "InterpretedFunction"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what ran where; the mark comes with each report, because another process may have run the test."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    called = [report for report in reports if getattr(report, "when", "") == "call"]
    for mark, said in (
        (SIMULATED, "on the simulated device, evidence for no rung"),
        (AS_PTX, "as PTX for sm_120a, rung ptx"),
    ):
        count = sum(mark in properties(report) for report in called)
        if count:
            terminalreporter.write_line(f"{count} device tests ran {said}: {why_no_device()}")


def properties(report: pytest.TestReport) -> list[tuple[str, object]]:
    return [tuple(pair) for pair in getattr(report, "user_properties", ())]
