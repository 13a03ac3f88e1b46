"""The shipped kernel, compiled for the CPU: equal to the reference, with the maths' properties, under any schedule."""

from __future__ import annotations

import pytest
import torch
from mrope_cpu_build import Case, library, on_cpu, pack, variant_names
from mrope_oracle import DTYPES, YARN, assert_right, variants_of

from sm120.kernels._kit.host_library import SCHEDULES, HostLibrary, Mutation

CORE = "fused_qk_norm_mrope.cuh"
FULL = "mrope_bf16_f32_d128_r128_a3_neox"
GPTJ = "mrope_bf16_f32_d128_r128_a1_gptj"
PARTIAL = "mrope_bf16_f32_d64_r32_a3_neox"
FEW = [PARTIAL, FULL, GPTJ]


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: f"{row['activations']}-{row['table']}")
@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_dtype_table(row: dict[str, object], position_dtype: torch.dtype) -> None:
    """Every compiled variant of the row, under every schedule: the reference, and the same bits each time."""
    for name in variants_of(row, variant_names(library())):
        case = Case(name, position_dtype=position_dtype, yarn=YARN)
        results = [assert_right(case, on_cpu(library(), schedule)) for schedule in SCHEDULES]
        for result in results[1:]:
            assert torch.equal(results[0].view(torch.int16), result.view(torch.int16)), f"{name}: depends on schedule"


@pytest.mark.parametrize("tokens", [0, 1, 63, 65])
def test_token_counts(tokens: int) -> None:
    for name in FEW:
        assert_right(Case(name, tokens=tokens), on_cpu(library()))


@pytest.mark.parametrize(("q", "kv"), [(1, 1), (2, 1), (5, 1), (6, 2), (7, 7), (64, 4)], ids=lambda n: str(n))
def test_head_counts(q: int, kv: int) -> None:
    for name in FEW:
        assert_right(Case(name, tokens=3, num_q_heads=q, num_kv_heads=kv), on_cpu(library()))


def run_plain(
    case: Case, positions: torch.Tensor, owners: list[int] | None = None, built: HostLibrary | None = None
) -> torch.Tensor:
    """Q and K of the case at these positions, with `owners` as the axis map in place of its own."""
    qkv, q_weight, k_weight, _, table = case.tensors()
    words, *rest = case.arguments()
    words = words if owners is None else pack(owners)
    on_cpu(built or library())(qkv, q_weight, k_weight, positions, table, words, *rest)
    return qkv[:, : case.width].clone()


@pytest.mark.parametrize("table", ["f32", "same"])
@pytest.mark.parametrize("pairing", ["neox", "gptj"])
def test_three_equal_rows_are_one_axis_to_the_bit(table: str, pairing: str) -> None:
    three = Case(f"mrope_bf16_{table}_d128_r128_a3_{pairing}", tokens=9)
    row = torch.tensor([0, 1, 5, 90, 91, 91, 17, 300, 4])
    three.table = three.table_of(301)
    one = run_plain(three, row)
    assert torch.equal(one, run_plain(three, row.expand(3, -1)))
    assert not torch.equal(one, run_plain(three, torch.stack([row, row, row.flip(0)])))


def test_rows_that_differ_are_not_one_axis() -> None:
    case = Case(FULL, tokens=2)
    case.table = case.table_of(10)
    rows = torch.tensor([[5, 5], [5, 9], [5, 3]])
    three, one = run_plain(case, rows), run_plain(case, rows[0])
    assert torch.equal(three[0], one[0]) and not torch.equal(three[1], one[1])
    # the pairs that belong to time still agree, the others have all moved
    half = case.head_dim // 2
    same = (three[1].view(-1, 2, half) == one[1].view(-1, 2, half)).all(1)
    owners = torch.tensor(case.owners)
    assert same[:, owners == 0].all() and not same[:, owners != 0][:, :20].any()


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1), (0, 2, 1)], ids=str)
def test_permuting_the_axes_of_map_and_positions_changes_nothing(order: tuple[int, ...]) -> None:
    case = Case(FULL)
    permuted = [order.index(axis) for axis in case.owners]
    moved = run_plain(case, case.positions[list(order)].contiguous(), permuted)
    assert torch.equal(run_plain(case, case.positions), moved)


@pytest.mark.parametrize("stride", ["buffer_slice", "expanded", "every_other_row"])
def test_row_strides_of_positions(stride: str) -> None:
    for name in (PARTIAL, FULL):
        case = Case(name, tokens=6)
        if stride == "expanded":
            case.positions = case.positions[1].unsqueeze(0).expand(3, -1)
            assert case.positions.stride(0) == 0
        else:
            wide = torch.full((6, 40), -7)
            rows = wide[::2] if stride == "every_other_row" else wide[:3]
            rows[:, :6] = case.positions
            case.positions = rows[:, :6]
        assert_right(case, on_cpu(library()))


@pytest.mark.parametrize("name", [FULL, GPTJ])
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
    case = Case("mrope_bf16_f32_d256_r64_a3_neox")
    a, b = run_plain(case, case.positions), run_plain(case, torch.zeros_like(case.positions))
    a, b = (x.view(case.tokens, -1, 256) for x in (a, b))
    assert torch.equal(a[..., 64:], b[..., 64:]) and not torch.equal(a[..., :64], b[..., :64])


def test_position_outside_the_cache_gives_nan_for_that_token_alone() -> None:
    case = Case(PARTIAL, tokens=4)
    length = case.table.shape[0]
    case.table = case.table_of(length + 8)[:length]  # what lies behind the cache is readable, so reading it would show
    good = run_plain(case, case.positions)
    for bad in (length, -1, 2**32, 2**40 + 1):
        positions = case.positions.clone()
        positions[1, 2] = bad
        out = run_plain(case, positions)
        assert out[2].isnan().all(), bad
        assert torch.equal(out[[0, 1, 3]], good[[0, 1, 3]])


def strided(built: HostLibrary) -> None:
    case = Case(PARTIAL, tokens=6)
    wide = torch.full((3, 40), 1)
    wide[:, :6] = case.positions
    case.positions = wide[:, :6]
    assert_right(case, on_cpu(built))


def full(built: HostLibrary) -> None:
    assert_right(Case(FULL, yarn=YARN), on_cpu(built))


def partial(built: HostLibrary) -> None:
    assert_right(Case(PARTIAL), on_cpu(built))


def gptj(built: HostLibrary) -> None:
    assert_right(Case(GPTJ), on_cpu(built))


def int32(built: HostLibrary) -> None:
    case = Case(PARTIAL, position_dtype=torch.int32)
    room = torch.zeros((6, 64), dtype=torch.int32)  # twice the rows: what reads too far reads zeros
    room[:3, : case.tokens] = case.positions
    case.positions = room[:3, : case.tokens]
    assert_right(case, on_cpu(built))


def outside(built: HostLibrary) -> None:
    case = Case(PARTIAL, tokens=4)
    length = case.table.shape[0]
    case.table = case.table_of(length + 8)[:length]
    positions = case.positions.clone()
    positions[2, 1] = length
    assert run_plain(case, positions, built=built)[1].isnan().all(), "a position outside the cache gave a number"


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
        full,
        Mutation("cosine taken for sine", CORE, "sin[i] = to_float(row[kPairs + i]);", "sin[i] = to_float(row[i]);"),
    ),
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
    (
        partial,
        Mutation(
            "weights of Q and K exchanged", CORE, "is_q ? p.q_weight : p.k_weight", "is_q ? p.k_weight : p.q_weight"
        ),
    ),
    (
        partial,
        Mutation(
            "V normalised with K",
            CORE,
            "heads = p.num_q_heads + p.num_kv_heads;",
            "heads = p.num_q_heads + 2 * p.num_kv_heads;",
        ),
    ),
]


def test_the_checks_of_the_twins_pass_on_the_kernel_itself() -> None:
    for check in {check for check, _ in MUTATIONS}:
        check(library())


@pytest.mark.parametrize(("check", "mutation"), MUTATIONS, ids=lambda part: getattr(part, "name", ""))
def test_a_wrong_twin_is_rejected(check: object, mutation: Mutation) -> None:
    built = library(mutation, {full: FULL, gptj: GPTJ}.get(check, PARTIAL))
    with pytest.raises(AssertionError):
        check(built)
