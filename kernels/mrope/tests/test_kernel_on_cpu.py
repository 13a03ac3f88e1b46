"""The shipped kernel, compiled for the CPU: equal to the reference, with the maths' properties, under any schedule."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from mrope_cpu_build import Case, library, rounding, run, variant_names
from mrope_oracle import DTYPES, YARN, assert_right, store_for, variants_of

from sm120.kernels._lib.closeness import assert_close
from sm120.kernels._lib.host_library import SCHEDULES, HostLibrary, Mutation

CORE = "fused_qk_norm_mrope.cuh"
PHASE = "mrope_bf16_phase_d128_r128_a3_neox_plain_none"
GPTJ = "mrope_bf16_f32_d128_r128_a1_gptj_plain_none"
PARTIAL = "mrope_bf16_f32_d64_r32_a3_neox_gemma_fp8"
FEW = [PARTIAL, PHASE, GPTJ]


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: f"{row['activations']}-{row['table']}-{row['store']}")
@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_dtype_table(row: dict[str, object], position_dtype: torch.dtype) -> None:
    """Every compiled variant of the row, under every schedule: the reference, and the same bits each time."""
    for name in variants_of(row, variant_names(library())):
        case = Case(name, position_dtype=position_dtype, yarn=YARN)
        results = [assert_right(case, library(), schedule) for schedule in SCHEDULES]
        for result in results[1:]:
            assert torch.equal(results[0].view(torch.int16), result.view(torch.int16)), f"{name}: depends on schedule"


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_token_counts(tokens: int) -> None:
    for name in FEW:
        case = Case(name, tokens=tokens)
        if tokens:
            assert_right(case, library())
        else:
            assert run(library(), *case.tensors(), store=store_for(case), **case.arguments()).shape[0] == 0


@pytest.mark.parametrize(("q", "kv"), [(1, 1), (2, 1), (5, 1), (6, 2), (7, 7), (64, 4)], ids=lambda n: str(n))
def test_head_counts(q: int, kv: int) -> None:
    for name in FEW:
        assert_right(Case(name, tokens=3, num_q_heads=q, num_kv_heads=kv), library())


def test_in_place_is_the_same_and_leaves_v_alone() -> None:
    for name in FEW:
        case = Case(name)
        apart = assert_right(case, library())
        qkv, *rest = case.tensors()
        run(library(), qkv, *rest, store=store_for(case), **case.arguments())
        assert torch.equal(qkv[:, : case.width], apart)
        assert torch.equal(qkv[:, case.width :], case.qkv[:, case.width :])


def run_plain(case: Case, positions: torch.Tensor, built: HostLibrary | None = None, **change: object) -> torch.Tensor:
    qkv, q_weight, k_weight, _, table = case.tensors()
    arguments = case.arguments() | {"store": store_for(case)} | change
    out = run(built or library(), qkv, q_weight, k_weight, positions, table, **arguments)
    return out[:, : case.width].clone()


@pytest.mark.parametrize("table", ["f32", "same", "phase"])
@pytest.mark.parametrize("pairing", ["neox", "gptj"])
def test_three_equal_rows_are_one_axis_to_the_bit(table: str, pairing: str) -> None:
    three = Case(f"mrope_bf16_{table}_d128_r128_a3_{pairing}_plain_none", tokens=9)
    row = torch.tensor([0, 1, 5, 90, 91, 91, 17, 300, 4])
    three.table = three._table(301)
    one = run_plain(three, row, axis_map=None)
    assert torch.equal(one, run_plain(three, row.expand(3, -1)))
    assert not torch.equal(one, run_plain(three, torch.stack([row, row, row.flip(0)])))


def test_rows_that_differ_are_not_one_axis() -> None:
    case = Case("mrope_bf16_f32_d128_r128_a3_neox_plain_none", tokens=2)
    case.table = case._table(10)
    rows = torch.tensor([[5, 5], [5, 9], [5, 3]])
    three, one = run_plain(case, rows), run_plain(case, rows[0], axis_map=None)
    assert torch.equal(three[0], one[0]) and not torch.equal(three[1], one[1])
    # the pairs that belong to time still agree, the others have all moved
    half = case.head_dim // 2
    same = (three[1].view(-1, 2, half) == one[1].view(-1, 2, half)).all(1)
    owners = torch.tensor(case.owners)
    assert same[:, owners == 0].all() and not same[:, owners != 0][:, :20].any()


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1), (0, 2, 1)], ids=str)
def test_permuting_the_axes_of_map_and_positions_changes_nothing(order: tuple[int, ...]) -> None:
    case = Case(PHASE)
    permuted = [order.index(axis) for axis in case.owners]
    assert torch.equal(
        run_plain(case, case.positions), run_plain(case, case.positions[list(order)].contiguous(), axis_map=permuted)
    )


@pytest.mark.parametrize("stride", ["buffer_slice", "expanded", "every_other_row"])
def test_row_strides_of_positions(stride: str) -> None:
    for name in (PARTIAL, PHASE):
        case = Case(name, tokens=6)
        if stride == "expanded":
            case.positions = case.positions[1].unsqueeze(0).expand(3, -1)
            assert case.positions.stride(0) == 0
        else:
            wide = torch.full((6, 40), -7)
            rows = wide[::2] if stride == "every_other_row" else wide[:3]
            rows[:, :6] = case.positions
            case.positions = rows[:, :6]
        assert_right(case, library())


@pytest.mark.parametrize("position", [0, 262_143, 524_287, 1_048_575, 2**31 - 1])
def test_far_positions_lose_nothing(position: int) -> None:
    positions = torch.tensor([[position, position - 1, 3]] * 3).clamp(min=0)
    positions[1] //= 2
    assert_right(Case(PHASE, tokens=3, positions=positions, yarn=YARN), library())


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_cache_and_computed_angles_agree(factor: float) -> None:
    """With the cache made in float64 the two differ by its float32 rounding; made in float32, also by its angles."""
    yarn = dataclasses.replace(YARN, factor=factor, attention_factor=1.0 + 0.1 * np.log(factor))
    computed = Case(PHASE, tokens=8, yarn=yarn)
    cached = Case(PHASE.replace("phase", "f32"), tokens=8, yarn=yarn)
    a, b = run_plain(computed, computed.positions), run_plain(cached, cached.positions)
    assert_close("cache against computed", a, b, 2.0**-10)
    assert (a != b).float().mean() < 0.01
    single = np.float32(np.arange(600))[:, None] * cached.frequencies.astype(np.float32)
    cached.table = torch.from_numpy(
        np.concatenate([np.cos(single), np.sin(single)], 1) * np.float32(yarn.attention_factor)
    )
    worst = (run_plain(cached, cached.positions).double() - computed.expected()).abs().max()
    assert worst <= 600 * 2.0**-23 * 12 + rounding(torch.bfloat16) * computed.expected().abs().max()


@pytest.mark.parametrize("name", [PHASE, GPTJ])
def test_turning_keeps_the_norm_of_every_pair(name: str) -> None:
    case = Case(name.replace("bf16", "fp16"))
    still = run_plain(case, torch.zeros_like(case.positions)).double()
    turned = run_plain(case, case.positions).double()

    def norms(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(case.tokens, -1, case.head_dim)
        return (heads.unflatten(-1, (2, -1)) if case.neox else heads.unflatten(-1, (-1, 2)).mT).norm(dim=-2)

    assert not torch.equal(still, turned)
    assert torch.allclose(norms(still), norms(turned), rtol=2**-10, atol=1e-5)


def test_dims_past_rotary_dim_are_only_normalised() -> None:
    case = Case("mrope_bf16_f32_d256_r64_a3_neox_gemma_none")
    a, b = run_plain(case, case.positions), run_plain(case, torch.zeros_like(case.positions))
    a, b = (x.view(case.tokens, -1, 256) for x in (a, b))
    assert torch.equal(a[..., 64:], b[..., 64:]) and not torch.equal(a[..., :64], b[..., :64])


def test_position_outside_the_cache_gives_nan_for_that_token_alone() -> None:
    case = Case(PARTIAL, tokens=4)
    length = case.table.shape[0]
    case.table = case._table(length + 8)[:length]  # what lies behind the cache is readable, so reading it would show
    good = run_plain(case, case.positions)
    for bad in (length, -1, 2**32, 2**40 + 1):
        positions = case.positions.clone()
        positions[1, 2] = bad
        out = run_plain(case, positions)
        assert out[2].isnan().all(), bad
        assert torch.equal(out[[0, 1, 3]], good[[0, 1, 3]])


def test_fp8_store_clamps_and_keeps_nan() -> None:
    case = Case(PARTIAL, tokens=3)
    case.qkv[:, case.width] = torch.tensor([1e4, float("nan"), -1e4], dtype=case.dtype)
    store = dataclasses.replace(store_for(case), slots=torch.tensor([4, 0, 2]))
    qkv, *rest = case.tensors()
    run(library(), qkv, *rest, store=store, **case.arguments())
    assert store.v_cache.float()[[4, 2], 0, 0].tolist() == [448.0, -448.0]
    assert store.v_cache.view(torch.uint8)[0, 0, 0] & 0x7F == 0x7F


def far(built: HostLibrary) -> None:
    positions = torch.tensor([[1_048_575, 524_287, 3], [9, 262_143, 77], [5, 8, 1_048_574]])
    assert_right(Case(PHASE, tokens=3, positions=positions, yarn=YARN), built)


def strided(built: HostLibrary) -> None:
    case = Case(PARTIAL, tokens=6)
    wide = torch.full((3, 40), 1)
    wide[:, :6] = case.positions
    case.positions = wide[:, :6]
    assert_right(case, built)


def yarn(built: HostLibrary) -> None:
    assert_right(Case(PHASE, yarn=YARN), built)


def partial(built: HostLibrary) -> None:
    assert_right(Case(PARTIAL), built)


def gptj(built: HostLibrary) -> None:
    assert_right(Case(GPTJ), built)


def int32(built: HostLibrary) -> None:
    case = Case(PARTIAL, position_dtype=torch.int32)
    room = torch.zeros((6, 64), dtype=torch.int32)  # twice the rows: what reads too far reads zeros
    room[:3, : case.tokens] = case.positions
    case.positions = room[:3, : case.tokens]
    assert_right(case, built)


def outside(built: HostLibrary) -> None:
    case = Case(PARTIAL, tokens=4)
    length = case.table.shape[0]
    case.table = case._table(length + 8)[:length]
    positions = case.positions.clone()
    positions[2, 1] = length
    assert run_plain(case, positions, built)[1].isnan().all(), "a position outside the cache gave a number"


def nan_kept(built: HostLibrary) -> None:
    case = Case(PARTIAL, tokens=3)
    case.qkv[:, case.width] = float("nan")
    store = dataclasses.replace(store_for(case), slots=torch.tensor([4, 0, 2]))
    run(built, case.tensors()[0], *case.tensors()[1:], store=store, **case.arguments())
    assert store.v_cache.float()[[4, 0, 2], 0, 0].isnan().all(), "a NaN was stored as a number"


AXES = "    return axis ? spatial : positions.row[0];"
MUTATIONS = [
    (
        partial,
        Mutation("temporal row for every pair", CORE, AXES, "    (void)spatial; (void)axis; return positions.row[0];"),
    ),
    (
        partial,
        Mutation(
            "height and width exchanged",
            CORE,
            "axis & 2 ? positions.row[2] : positions.row[1]",
            "axis & 2 ? positions.row[1] : positions.row[2]",
        ),
    ),
    (strided, Mutation("rows of positions taken as packed", CORE, "axis * p.position_stride", "axis * p.num_tokens")),
    (
        int32,
        Mutation(
            "int32 positions read as int64",
            CORE,
            "p.positions_are_int64 ? static_cast<const int64_t*>",
            "p.num_tokens != 0 ? static_cast<const int64_t*>",
        ),
    ),
    (
        outside,
        Mutation(
            "one row past the cache allowed",
            CORE,
            "static_cast<uint64_t>(position) >= static_cast<uint64_t>(p.position_limit)",
            "static_cast<uint64_t>(position) > static_cast<uint64_t>(p.position_limit)",
        ),
    ),
    (
        far,
        Mutation(
            "angles of 32 bits",
            CORE,
            "(position * two[i / 2].step[i % 2].turns) >> 32",
            "position * (two[i / 2].step[i % 2].turns >> 32)",
        ),
    ),
    (yarn, Mutation("attention factor forgotten", CORE, "? scale * p.attention_factor : scale", "? scale : scale")),
    (partial, Mutation("sum over half of the lanes", CORE, "distance = kLanes / 2;", "distance = kLanes / 4;")),
    (
        gptj,
        Mutation(
            "turned backwards",
            CORE,
            "first = multiply_add(a, cos, -(b * sin));",
            "first = multiply_add(a, cos, b * sin);",
        ),
    ),
    (
        gptj,
        Mutation(
            "second chunk's pairs numbered like the first's",
            CORE,
            "quad_cos_sin<Table, kRotaryDim>(p, positions, second / 2, cos, sin)",
            "quad_cos_sin<Table, kRotaryDim>(p, positions, first / 2, cos, sin)",
        ),
    ),
    (partial, Mutation("Gemma weights taken as plain", CORE, "kGemma ? w.y + 1.0f : w.y", "kGemma ? w.y : w.y")),
    (
        partial,
        Mutation(
            "weights of Q and K exchanged", CORE, "is_q ? p.q_weight : p.k_weight", "is_q ? p.k_weight : p.q_weight"
        ),
    ),
    (
        partial,
        Mutation(
            "negative slot stored",
            CORE,
            "is_q ? -1 : p.slots[token]",
            "is_q ? -1 : (p.slots[token] < 0 ? 0 : p.slots[token])",
        ),
    ),
    (
        nan_kept,
        Mutation(
            "clamp by fmin and fmax",
            CORE,
            "x > 448.0f ? 448.0f : (x < -448.0f ? -448.0f : x)",
            "::fminf(::fmaxf(x, -448.0f), 448.0f)",
        ),
    ),
]


def test_the_checks_of_the_twins_pass_on_the_kernel_itself() -> None:
    for check in {check for check, _ in MUTATIONS}:
        check(library())


@pytest.mark.parametrize(("check", "mutation"), MUTATIONS, ids=lambda part: getattr(part, "name", ""))
def test_a_wrong_twin_is_rejected(check: object, mutation: Mutation) -> None:
    built = library(mutation, {far: PHASE, yarn: PHASE, gptj: GPTJ}.get(check, PARTIAL))
    with pytest.raises(AssertionError):
        check(built)
