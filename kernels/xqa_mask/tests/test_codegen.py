"""The shipped kernels compiled for sm_120a: resources, budgets and the committed static record."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from sm120.kernels._kit import compilers, machine_code, static_estimate
from sm120.kernels.xqa_mask import bench

FOLDER = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(compilers.missing_nvcc() is not None, reason=str(compilers.missing_nvcc()))
BUDGETS = static_estimate.budgets(FOLDER / "kernel.toml")


@functools.cache
def code() -> dict[str, machine_code.KernelCode]:
    return machine_code.inspect(bench.compile_for_device())


@pytest.mark.parametrize("budget", BUDGETS, ids=[row["kernel"] for row in BUDGETS])
def test_each_kernel_keeps_its_budget(budget: dict) -> None:
    static_estimate.check_budget(budget, code()[budget["kernel"]])


def test_every_kernel_has_a_budget() -> None:
    assert {row["kernel"] for row in BUDGETS} == code().keys()


def test_the_committed_static_estimate_is_this_build() -> None:
    try:
        static_estimate.check_golden(FOLDER / "static_roofline.json", bench.static_records())
    except static_estimate.OtherToolchain as other:
        pytest.skip(str(other))


@pytest.mark.skipif(compilers.missing_nvrtc() is not None, reason=str(compilers.missing_nvrtc()))
def test_nvrtc_compiles_the_same_source() -> None:
    kernels = machine_code.inspect(compilers.nvrtc(FOLDER / "xqa_mask.cuh"))
    assert kernels.keys() == code().keys()
    assert all(kernel.spills == 0 for kernel in kernels.values())
