"""The shipped kernels compile for sm_120a within their budgets and against the committed static records."""

from __future__ import annotations

import json

import pytest

from sm120.kernels._kit import static_estimate
from sm120.kernels.qsa import bench

BUDGETS = {row["kernel"]: row for row in static_estimate.budgets(bench.HERE / "kernel.toml")}
QUARTER_OF_THE_WARPS = 12


# one worker compiles for all tests of this file
pytestmark = pytest.mark.xdist_group("qsa_codegen")


@pytest.fixture(scope="module")
def built() -> dict[str, tuple]:
    """Every shipped variant, compiled once: name -> (variant, code, cubin)."""
    return {variant.name: (variant, *variant.compile()) for variant in bench.shipped()}


def test_every_variant_has_a_budget(built):
    assert built.keys() == BUDGETS.keys()


def test_budgets_hold_without_spills(built):
    for name, (variant, code, cubin) in built.items():
        assert BUDGETS[name]["threads"] == variant.warps * 32
        assert BUDGETS[name]["spill_bytes"] == 0
        static_estimate.check_budget(BUDGETS[name], code, cubin.dynamic_shared_bytes)


def test_a_quarter_of_the_warps_is_resident(built):
    for name, (variant, code, cubin) in built.items():
        row = static_estimate.record(code, cubin, variant.warps * 32, variant.bytes_moved)
        assert row["occupancy"]["warps_per_sm"] >= QUARTER_OF_THE_WARPS, f"{name}: {row['occupancy']}"


def test_selected_rows_are_read_sixteen_bytes_a_lane(built):
    """K and V rows move in full vectors; only index and score words are narrower."""
    for name in ("decode_fp8", "prefill_fp8", "decode_bf16", "prefill_bf16"):
        _, code, _ = built[name]
        hot = max(code.loops, key=len)
        wide = sum(1 for i in hot if i.kind in ("ldg", "ldgsts") and i.access_bytes == 16)
        narrow = sum(1 for i in hot if i.kind in ("ldg", "ldgsts") and i.access_bytes < 4)
        assert wide >= 8 and narrow == 0, f"{name}: {wide} wide and {narrow} sub-word loads in the loop"


def test_paired_values_need_no_byte_gather(built):
    """What the 16-bit pairs are for: not one byte-wide shared memory load in the loop."""
    _, code, _ = built["decode_fp8"]
    assert not [i for i in max(code.loops, key=len) if i.mnemonic.startswith("LDS.U8")]


def test_static_records_are_the_committed_ones(built):
    committed = {row["kernel"]: row for row in json.loads(bench.GOLDEN.read_text())["kernels"]}
    for name, (variant, code, cubin) in built.items():
        row = static_estimate.record(code, cubin, variant.warps * 32, variant.bytes_moved)
        old = committed[name]
        if old["toolchain"] != row["toolchain"]:
            pytest.skip(f"static_roofline.json was written with {old['toolchain']}, this is {row['toolchain']}")
        for key in ("registers", "spills", "shared_bytes", "bytes_moved"):
            assert row[key] == old[key], f"{name}: {key}; if meant: python -m sm120.kernels.qsa.bench --static"
        allowed = static_estimate.INSTRUCTION_TOLERANCE * old["hot_loop"]["instructions"]
        assert abs(row["hot_loop"]["instructions"] - old["hot_loop"]["instructions"]) <= allowed, name


def test_committed_comparison_with_the_straightforward_kernel():
    """FP8 decode against the yardsticks, per KV token: the figures that the README states."""
    rows = {
        row["kernel"]: row["warp_instructions_per_token"] for row in json.loads(bench.GOLDEN.read_text())["kernels"]
    }
    assert rows["decode_fp8"] <= 0.60 * rows["naive_fp8_32x4"]
    assert rows["decode_fp8"] <= 0.60 * rows["naive_fp8_32x8"]
    assert rows["decode_fp8"] <= 0.63 * rows["naive_fp8_64x4"]


@pytest.mark.parametrize("resource", ["registers", "shared_bytes"])
def test_a_tighter_budget_is_refused(built, resource):
    _, code, cubin = built["decode_fp8"]
    tight = {**BUDGETS["decode_fp8"], resource: 64}
    with pytest.raises(AssertionError, match=resource):
        static_estimate.check_budget(tight, code, cubin.dynamic_shared_bytes)
