"""The shipped kernel compiled for sm_120a: its budget, and the committed static record."""

import pytest

from sm120.kernels._kit import machine_code, static_estimate
from sm120.kernels._template import bench


def test_the_budget_holds() -> None:
    (budget,) = static_estimate.budgets(bench.FOLDER / "kernel.toml")
    cubin = bench.compile_for_device()
    static_estimate.check_budget(budget, machine_code.only(cubin), cubin.dynamic_shared_bytes)


def test_the_committed_static_estimate_is_this_build() -> None:
    try:
        static_estimate.check_golden(bench.FOLDER / "static_roofline.json", bench.static_records())
    except static_estimate.OtherToolchain as other:
        pytest.skip(str(other))
