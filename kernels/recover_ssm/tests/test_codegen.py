"""What sm_120a machine code says: within budget, no spills, and each state byte moved once."""

import functools
import os
import tomllib
from pathlib import Path

import pytest
from sm120.kernels._lib import compilers, machine_code, static_estimate
from sm120.kernels._lib.occupancy import occupancy

TOML = Path(__file__).parents[1] / "kernel.toml"
MODULE = "sm120.kernels.recover_ssm.triton_recover"
# Flash-Next and 27B: 16 key heads, 48 value heads, K = V = 128
GEOMETRY = dict(H=16, HV=48, K=128, V=128, BV=8)
STATE_ITEMSIZE = {"fp32": 4, "bf16": 2}
KEPT = {"keep_k": "*bf16", "keep_v": "*bf16", "keep_g": "*fp32", "keep_beta": "*fp32", "window_rows": "*i32"}
BF16 = dict.fromkeys(("q", "k", "v", "a", "b", "out"), "*bf16")
TILE_BYTES = {name: GEOMETRY["K"] * GEOMETRY["BV"] * size for name, size in STATE_ITEMSIZE.items()}


def strides(letter, axes):
    return {f"stride_{letter}{axis}": "i32" for axis in axes}


SIGNATURES = {
    "verify": {
        **BF16,
        **KEPT,
        "A_log": "*fp32",
        "dt_bias": "*fp32",
        "state_indices": "*i32",
        **dict.fromkeys(("T", "num_slots", "num_rows", "depth"), "i32"),
        "scale": "fp32",
        **strides("q", "bth"),
        **strides("k", "bth"),
        **strides("v", "bth"),
        **strides("a", "bt"),
        **strides("b", "bt"),
        "stride_slot": "i64",
    },
    "recover": {
        **KEPT,
        "slots": "*i32",
        **dict.fromkeys(("last_steps", "track_slots", "track_steps"), "*i64"),
        **dict.fromkeys(("num_slots", "num_rows", "depth"), "i32"),
        "stride_layer": "i64",
        "stride_slot": "i64",
    },
}
CONSTEXPRS = {"verify": dict(KEEP=True, HAS_ROWS=True), "recover": dict(TRACK=True, HAS_ROWS=True)}
NEVER_ALIGNED = {"T", "num_slots", "num_rows", "depth", "scale", "stride_ab", "stride_at", "stride_bb", "stride_bt"}


@functools.cache
def code(kernel: str, state: str) -> machine_code.KernelCode:
    signature = {**SIGNATURES[kernel], "state": f"*{state}"}
    cubin = compilers.triton(
        MODULE,
        f"_{kernel}_kernel",
        signature=signature,
        constexprs={**GEOMETRY, **CONSTEXPRS[kernel]},
        aligned=[name for name in signature if name not in NEVER_ALIGNED],
        num_warps=1,
        num_stages=3,
    )
    return machine_code.only(cubin)


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
    assert rows == {f"{kernel}_{state}" for kernel in SIGNATURES for state in STATE_ITEMSIZE}


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


@pytest.mark.parametrize("T", [4, 8, 16])
def test_bytes_of_a_round_beside_the_pool_based_form(T):
    """Static: states moved per layer and request. The pool-based form writes T of them and copies one back."""
    reads_and_writes = {"verify": 1, "recover": 2}
    ours = sum(reads_and_writes.values())
    pool_based = 1 + T + 2
    assert ours == 3 and pool_based == T + 3


def test_a_kernel_that_reads_the_state_again_is_noticed(tmp_path, monkeypatch):
    """Mutation twin: reloading the state for every token must not pass as one read."""
    source = (Path(__file__).parents[1] / "triton_recover.py").read_text()
    old = "        S = _advance(S, _unit(kt), vt, g, beta)\n        o = "
    new = "        S = tl.load(p_state, volatile=True).to(tl.float32)\n" + old
    assert source.count(old) == 1
    (tmp_path / "rereading.py").write_text(source.replace(old, new))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setitem(globals(), "MODULE", "rereading")
    compiled = code.__wrapped__("verify", "fp32")
    loads = sum(i.access_bytes * 32 for body in compiled.loops for i in body if i.kind == "ldg")
    plain = sum(i.access_bytes * 32 for body in code("verify", "bf16").loops for i in body if i.kind == "ldg")
    assert loads >= TILE_BYTES["fp32"] > plain
