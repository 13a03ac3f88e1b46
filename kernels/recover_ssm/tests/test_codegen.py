"""What sm_120a machine code says: within budget, no spills, and each state byte moved once."""

import functools
import os
import tomllib
from pathlib import Path

import pytest

from sm120.kernels._kit import machine_code, static_estimate
from sm120.kernels._kit.occupancy import occupancy
from sm120.kernels.recover_ssm import bench

FOLDER = Path(__file__).parents[1]
TOML = FOLDER / "kernel.toml"
TILE_BYTES = {name: bench.HEADS["K"] * bench.BLOCK_V * size for name, size in bench.STATE_ITEMSIZE.items()}


# taken before a test replaces the bench's own function by this one
compiled_cubin = functools.cache(bench.compile_for_device)


def code(kernel: str, state: str) -> machine_code.KernelCode:
    return machine_code.only(compiled_cubin(kernel, state))


VARIANTS = pytest.mark.parametrize("kernel", ["verify", "recover"])
STATES = pytest.mark.parametrize("state", ["fp32", "bf16"])


@VARIANTS
@STATES
def test_within_budget(kernel, state):
    budget = next(row for row in static_estimate.budgets(TOML) if row["kernel"] == f"{kernel}_{state}")
    compiled = code(kernel, state)
    static_estimate.check_budget(budget, compiled)
    assert compiled.spills == 0
    assert occupancy(compiled.registers, 32, compiled.shared_bytes).warps >= budget["warps"]


def test_every_variant_has_a_budget():
    rows = {row["kernel"] for row in tomllib.loads(TOML.read_text())["budget"]}
    assert rows == {f"{kernel}_{state}" for kernel in bench.SIGNATURES for state in bench.STATE_ITEMSIZE}


def wide(compiled: machine_code.KernelCode, kind: str, *, loop: bool) -> int:
    """Bytes that a warp moves in 16-byte accesses of this kind, inside its loops or outside of all."""
    inside = {id(instruction) for body in compiled.loops for instruction in body}
    return sum(
        instruction.access_bytes * 32
        for instruction in compiled.instructions
        if instruction.kind == kind and instruction.access_bytes == 16 and (id(instruction) in inside) == loop
    )


@STATES
def test_verify_reads_the_state_once_and_never_writes_it(state):
    compiled = code("verify", state)
    assert wide(compiled, "ldg", loop=False) == TILE_BYTES[state], "the tile, once, before the tokens"
    assert wide(compiled, "stg", loop=False) == wide(compiled, "stg", loop=True) == 0
    assert max(i.access_bytes for i in compiled.instructions if i.kind == "stg") <= 8


@STATES
def test_recover_reads_the_state_once_and_stores_it_once_a_destination(state):
    compiled = code("recover", state)
    assert wide(compiled, "ldg", loop=False) == TILE_BYTES[state]
    # both stores sit in the token loop under a test for their own step: the working slot and the checkpoint
    assert wide(compiled, "stg", loop=True) == 2 * TILE_BYTES[state]
    assert wide(compiled, "stg", loop=False) == 0


def test_the_static_record_is_current(monkeypatch):
    monkeypatch.setattr(bench, "compile_for_device", compiled_cubin)
    try:
        static_estimate.check_golden(FOLDER / "static_roofline.json", bench.static_records())
    except static_estimate.OtherToolchain as other:
        pytest.skip(str(other))


def test_a_kernel_that_reads_the_state_again_is_noticed(tmp_path, monkeypatch):
    """Mutation twin: reloading the state for every token must not pass as one read."""
    source = (FOLDER / "triton_recover.py").read_text()
    old = "        S = _advance(S, _unit(kt), vt, g, beta)\n        o = "
    new = "        S = tl.load(p_state, volatile=True).to(tl.float32)\n" + old
    assert source.count(old) == 1
    (tmp_path / "rereading.py").write_text(source.replace(old, new))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    compiled = machine_code.only(bench.compile_for_device("verify", "fp32", module="rereading"))
    loads = sum(i.access_bytes * 32 for body in compiled.loops for i in body if i.kind == "ldg")
    plain = sum(i.access_bytes * 32 for body in code("verify", "bf16").loops for i in body if i.kind == "ldg")
    assert loads >= TILE_BYTES["fp32"] > plain
