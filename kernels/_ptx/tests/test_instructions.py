"""Each instruction against the ISA's text, written again in NumPy, on edge values and random ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from one_instruction import module, run

from sm120.kernels._ptx.executor import Executable, PtxFault, engine
from sm120.kernels._ptx.parse import PtxError

U16, U32, U64, F32 = np.uint16, np.uint32, np.uint64, np.float32
EDGES = [0, 1, 2, 3, 15, 16, 31, 32, 33, 127, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
FLOATS = [0.0, -0.0, 1.0, -1.5, 2.0**-126, 2.0**-149, -(2.0**-130), 3.4e38, -3.4e38, math.inf, -math.inf, math.nan]
FLOATS += [65504.0, 65519.0, 65520.0, 2.0**-24, 2.0**-25, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 448.0]


def whole(dtype: type, seed: int) -> np.ndarray:
    """Edge values and random ones, one a lane."""
    rng = np.random.default_rng(seed)
    mask = np.iinfo(dtype).max
    values = [value & int(mask) for value in EDGES] + [int(x) for x in rng.integers(0, 2**63, 32 - len(EDGES))]
    return np.array([value & int(mask) for value in rng.permutation(np.array(values, dtype=object))], dtype=dtype)


def real(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = np.array(
        FLOATS + list(rng.standard_normal(32 - len(FLOATS)) * 10.0 ** rng.integers(-6, 6, 32 - len(FLOATS)))
    )
    return rng.permutation(values).astype(F32)


def signed(x: np.ndarray) -> np.ndarray:
    return x.view(f"i{x.itemsize}")


def big(x: np.ndarray) -> np.ndarray:
    """As Python integers: no wrap-around but the one that a test writes down."""
    return x.astype(object)


def cut(values: np.ndarray, dtype: type) -> np.ndarray:
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([int(value) & ((1 << bits) - 1) for value in values], dtype=dtype)


INTEGER: dict[str, tuple[type, type, Callable[..., np.ndarray]]] = {
    "add.s32": (U32, U32, lambda a, b: big(a) + big(b)),
    "sub.s64": (U64, U64, lambda a, b: big(a) - big(b)),
    "mul.lo.s16": (U16, U16, lambda a, b: big(a) * big(b)),
    "mul.lo.s64": (U64, U64, lambda a, b: big(a) * big(b)),
    "mul.hi.u16": (U16, U16, lambda a, b: big(a) * big(b) >> 16),
    "mul.hi.u32": (U32, U32, lambda a, b: big(a) * big(b) >> 32),
    "mul.hi.s32": (U32, U32, lambda a, b: big(signed(a)) * big(signed(b)) >> 32),
    "mul.wide.s32": (U32, U64, lambda a, b: big(signed(a)) * big(signed(b))),
    "mul.wide.u32": (U32, U64, lambda a, b: big(a) * big(b)),
    "mul.wide.u16": (U16, U32, lambda a, b: big(a) * big(b)),
    "min.s32": (U32, U32, lambda a, b: np.minimum(signed(a), signed(b))),
    "max.u32": (U32, U32, np.maximum),
    "max.s64": (U64, U64, lambda a, b: np.maximum(signed(a), signed(b))),
    "and.b64": (U64, U64, np.bitwise_and),
    "or.b16": (U16, U16, np.bitwise_or),
    "xor.b32": (U32, U32, np.bitwise_xor),
}


@pytest.mark.parametrize("opcode", INTEGER)
def test_integer_arithmetic(opcode):
    narrow, wide, expected = INTEGER[opcode]
    a, b = whole(narrow, 1), whole(narrow, 2)
    (result,) = run(f"{opcode} %d0, %a0, %a1;", [a, b], [f"b{8 * np.dtype(wide).itemsize}"])
    np.testing.assert_array_equal(result, cut(expected(a, b), wide))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("opcode", ["div", "rem"])
def test_division_truncates(opcode, kind):
    dtype = U32 if kind.endswith("32") else U64
    a, b = whole(dtype, 1), whole(dtype, 2)
    b[b == 0] = 3
    read = signed if kind[0] == "s" else np.asarray

    def expected(x: int, y: int) -> int:
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return quotient if opcode == "div" else x - quotient * y

    (result,) = run(f"{opcode}.{kind} %d0, %a0, %a1;", [a, b], [f"b{kind[1:]}"])
    np.testing.assert_array_equal(
        result, cut([expected(int(x), int(y)) for x, y in zip(read(a), read(b), strict=True)], dtype)
    )


def test_division_by_zero_is_named():
    a = np.arange(32, dtype=U32)
    with pytest.raises(PtxFault, match=r"lanes 0-31|all lanes.*division by zero"):
        run("div.u32 %d0, %a0, %a1;", [a, np.zeros(32, U32)], ["b32"])


@pytest.mark.parametrize(
    ("opcode", "shift"),
    [
        ("shl.b32", lambda x, n: x << n if n < 32 else 0),
        ("shr.u32", lambda x, n: x >> n if n < 32 else 0),
        ("shr.s32", lambda x, n: (x - (x >> 31 << 32)) >> min(n, 31)),
    ],
)  # fmt: skip
def test_a_shift_past_the_width_gives_zero_or_the_sign(opcode, shift):
    a, n = whole(U32, 3), np.array([0, 1, 7, 31, 32, 33, 64, 200] * 4, U32)
    (result,) = run(f"{opcode} %d0, %a0, %a1;", [a, n], ["b32"])
    np.testing.assert_array_equal(result, cut([shift(int(x), int(c)) for x, c in zip(a, n, strict=True)], U32))


@pytest.mark.parametrize("kind", ["u32", "s32"])
@pytest.mark.parametrize(("position", "length"), [(0, 1), (3, 5), (30, 8), (31, 1), (4, 0), (0, 32)])
def test_bit_fields(kind, position, length):
    a = whole(U32, 4)

    def expected(x: int) -> int:
        if length == 0:
            return 0
        sign = x >> min(position + length - 1, 31) & 1 if kind == "s32" else 0
        bits = [x >> (position + k) & 1 if k < length and position + k < 32 else sign for k in range(32)]
        return sum(bit << k for k, bit in enumerate(bits))

    (result,) = run(f"bfe.{kind} %d0, %a0, {position}, {length};", [a], ["b32"])
    np.testing.assert_array_equal(result, cut([expected(int(x)) for x in a], U32))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u16", "f32"])
@pytest.mark.parametrize("compare", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparison_and_selection(kind, compare):
    if kind == "f32":
        a, b = real(5), real(6)
        b[::3] = a[::3]
        x, y, register = a, b, "b32"
    else:
        dtype = {"16": U16, "32": U32, "64": U64}[kind[1:]]
        a, b = whole(dtype, 5), whole(dtype, 6)
        b[::3] = a[::3]
        x, y = (signed(a), signed(b)) if kind[0] == "s" else (a, b)
        register = f"b{kind[1:]}"
    holds = {
        "eq": x == y,
        "ne": (x != y) & ~((x != x) | (y != y)),
        "lt": x < y,
        "le": x <= y,
        "gt": x > y,
        "ge": x >= y,
    }
    body = f"setp.{compare}.{kind} %p1, %a0, %a1; selp.{register} %d0, %a0, %a1, %p1;"
    (result,) = run(body, [a, b], [register])
    expected = np.where(holds[compare], a, b)
    np.testing.assert_array_equal(result, expected.view(result.dtype))


def test_an_unordered_comparison_holds_for_a_nan():
    a = np.array([math.nan, 1, 2, math.nan] * 8, F32)
    b = np.array([1, math.nan, 2, math.nan] * 8, F32)
    for compare, expected in (("neu", ~(a == b)), ("equ", ~((a < b) | (a > b))), ("num", (a == a) & (b == b))):
        (result,) = run(f"setp.{compare}.f32 %p1, %a0, %a1; selp.b32 %d0, 1, 0, %p1;", [a, b], ["b32"])
        np.testing.assert_array_equal(result.astype(bool), expected)


def canonical(x: np.ndarray) -> np.ndarray:
    bits = x.astype(F32).view(U32)
    return np.where(np.isnan(x), U32(0x7FFFFFFF), bits)


FLOAT: dict[str, Callable[..., np.ndarray]] = {
    "add.f32": lambda a, b, c: a + b,
    "sub.f32": lambda a, b, c: a - b,
    "mul.f32": lambda a, b, c: a * b,
    "div.rn.f32": lambda a, b, c: a / b,
    "min.f32": lambda a, b, c: np.fmin(a, b),
    "max.f32": lambda a, b, c: np.fmax(a, b),
}


@pytest.mark.parametrize("opcode", FLOAT)
@pytest.mark.filterwarnings("ignore")
def test_floating_point_arithmetic(opcode):
    a, b, c = real(7), real(8), real(9)
    (result,) = run(f"{opcode} %d0, %a0, %a1;", [a, b], ["b32"])
    np.testing.assert_array_equal(result, canonical(FLOAT[opcode](a, b, c)))


def test_the_minimum_of_zeros_is_the_negative_one():
    zeros = np.array([0.0, -0.0] * 16, F32)
    (least,) = run("min.f32 %d0, %a0, %a1;", [zeros, zeros[::-1].copy()], ["b32"])
    (most,) = run("max.f32 %d0, %a0, %a1;", [zeros, zeros[::-1].copy()], ["b32"])
    assert (least == 0x80000000).all() and (most == 0).all()


@pytest.mark.parametrize("opcode", ["min", "max"])
def test_the_form_of_three_operands(opcode):
    a, b, c = (np.random.default_rng(k).standard_normal(32).astype(F32) for k in range(3))
    (result,) = run(f"{opcode}.f32 %d0, %a0, %a1, %a2;", [a, b, c], ["b32"])
    both = np.minimum if opcode == "min" else np.maximum
    np.testing.assert_array_equal(result.view(F32), both(both(a, b), c))


@pytest.mark.filterwarnings("ignore")
def test_fma_rounds_once_and_rm_downwards():
    a, b, c = real(10), real(11), real(12)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    exact = [float(x) * float(y) + float(z) if ok else 0 for x, y, z, ok in zip(a, b, c, finite, strict=True)]
    (nearest,) = run("fma.rn.f32 %d0, %a0, %a1, %a2;", [a, b, c], ["b32"])
    (down,) = run("fma.rm.f32 %d0, %a0, %a1, %a2;", [a, b, c], ["b32"])
    from fractions import Fraction

    for k in np.flatnonzero(finite & (np.abs(np.array(exact)) < 1e37)):
        truth = Fraction(float(a[k])) * Fraction(float(b[k])) + Fraction(float(c[k]))
        near, low = Fraction(float(nearest.view(F32)[k])), Fraction(float(down.view(F32)[k]))
        above = Fraction(float(np.nextafter(down.view(F32)[k], F32(math.inf))))
        assert low <= truth < above, k
        assert abs(near - truth) <= min(abs(low - truth), abs(above - truth)), k


def test_ftz_flushes_what_comes_in_and_what_goes_out():
    tiny = np.array([2.0**-130, -(2.0**-130), 2.0**-126, 1.5] * 8, F32)
    (result,) = run("mul.ftz.f32 %d0, %a0, 0f3F000000;", [tiny], ["b32"])
    np.testing.assert_array_equal(result.view(F32), np.where(np.abs(tiny) < 1, np.copysign(0, tiny), 0.75))


@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "fma.rn"])
def test_pairs_of_floats(opcode):
    rng = np.random.default_rng(1)
    pairs = [rng.standard_normal((32, 2)).astype(F32) for _ in range(3)]
    given = [pair.view(U64).ravel() for pair in pairs][: 3 if "fma" in opcode else 2]
    operands = ", ".join(f"%a{k}" for k in range(len(given)))
    (result,) = run(f"{opcode}.f32x2 %d0, {operands};", given, ["b64"])
    a, b, c = pairs
    exact = {"add": a + b, "sub": a - b, "mul": a * b, "fma.rn": (a.astype(float) * b + c).astype(F32)}[opcode]
    np.testing.assert_array_equal(result.view(F32).reshape(32, 2), exact)


# ---- conversions: NumPy and torch know float16, bfloat16 and float8_e4m3fn ----


def bits16(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(x.copy()).to(dtype).view(torch.int16).numpy().view(U16)


@pytest.mark.filterwarnings("ignore")
def test_conversions_round_to_nearest_even():
    x, y = real(13), real(14)
    nan = np.isnan(x)
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        (one,) = run(f"cvt.rn.{name}.f32 %d0, %a0;", [x], ["b16"])
        np.testing.assert_array_equal(one[~nan], bits16(x, dtype)[~nan])
        assert (one[nan] == 0x7FFF).all()
        (two,) = run(f"cvt.rn.{name}x2.f32 %d0, %a0, %a1;", [x, y], ["b32"])
        keep = ~(nan | np.isnan(y))
        upper, lower = bits16(x, dtype).astype(U32), bits16(y, dtype).astype(U32)
        np.testing.assert_array_equal(two[keep], (upper << 16 | lower)[keep])
    (cut_off,) = run("cvt.rz.bf16.f32 %d0, %a0;", [x], ["b16"])
    np.testing.assert_array_equal(cut_off[~nan], (x.view(U32) >> 16).astype(U16)[~nan])


def test_16_bit_floats_widen_exactly():
    for part in np.arange(65536, dtype=U16).reshape(-1, 1024)[::3]:
        for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            (wide,) = run(f"cvt.f32.{name} %d0, %a0;", [part], ["b32"], threads=1024)
            exact = torch.from_numpy(part.view(np.int16).copy()).view(dtype).float().numpy()
            np.testing.assert_array_equal(wide.view(F32), exact)


def test_every_e4m3_value_becomes_a_half():
    codes = np.arange(256, dtype=U16)
    (pairs,) = run("cvt.rn.f16x2.e4m3x2 %d0, %a0;", [codes | codes[::-1] << 8], ["b32"], threads=256)
    exact = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).half().numpy()
    low, high = (pairs & 0xFFFF).astype(U16).view(np.float16), (pairs >> 16).astype(U16).view(np.float16)
    np.testing.assert_array_equal(low, exact)
    np.testing.assert_array_equal(high, exact[::-1])


@pytest.mark.parametrize(
    ("opcode", "exact", "bound"),
    [
        ("ex2.approx.f32", np.exp2, 2.0**-22),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 2.0**-22.9),
        ("sqrt.approx.ftz.f32", np.sqrt, 2.0**-23),
        ("rcp.approx.ftz.f32", lambda x: 1 / x, 2.0**-23),
    ],
)
def test_an_approximation_is_exact_or_moved_by_the_stated_error(opcode, exact, bound):
    x = np.abs(np.random.default_rng(2).standard_normal(32)).astype(F32) + F32(0.1)
    truth = exact(x.astype(np.float64))
    plain, up, down = (
        run(f"{opcode} %d0, %a0;", [x], ["b32"], perturb=how)[0].view(F32).astype(np.float64) / truth - 1
        for how in ("none", "up", "down")
    )
    assert np.abs(plain).max() <= 2.0**-24
    assert (up >= plain).all() and (up > 0.4 * bound).all() and up.max() <= bound + 2.0**-24
    assert (down <= plain).all() and down.min() >= -bound - 2.0**-24


# ---- warps ----


def test_shuffles():
    x, lane = whole(U32, 15), np.arange(32)
    cases = {
        "bfly.b32 %d0, %a0, 5, 31, -1": x[lane ^ 5],
        "idx.b32 %d0, %a0, 3, 31, -1": x[np.full(32, 3)],
        "idx.b32 %d0, %a0, 1, 7199, -1": x[lane // 4 * 4 + 1],  # segments of four: 0x1c in the upper byte
        "up.b32 %d0, %a0, 4, 0, -1": x[np.where(lane >= 4, lane - 4, lane)],
        "down.b32 %d0, %a0, 2, 31, -1": x[np.where(lane + 2 < 32, lane + 2, lane)],
    }
    for body, expected in cases.items():
        (result,) = run(f"shfl.sync.{body};", [x], ["b32"])
        np.testing.assert_array_equal(result, expected, err_msg=body)


def test_a_shuffle_says_which_lanes_were_inside():
    (result,) = run(
        "shfl.sync.up.b32 %d0|%p1, %a0, 4, 0, -1; selp.b32 %d0, 1, 0, %p1;", [whole(U32, 1)], ["b32"]
    )  # fmt: skip
    np.testing.assert_array_equal(result, np.arange(32) >= 4)


def test_votes_and_reductions():
    x = np.arange(32, dtype=U32)
    (ballot,) = run("setp.gt.u32 %p1, %a0, 27; vote.sync.ballot.b32 %d0, %p1, -1;", [x], ["b32"])
    assert (ballot == 0xF0000000).all()
    (total,) = run("redux.sync.add.s32 %d0, %a0, -1;", [x], ["b32"])
    assert (total == 496).all()
    halves = "setp.lt.u32 %p1, %lane, 16; selp.b32 %r1, 0xffff, 0xffff0000, %p1; redux.sync.add.s32 %d0, %a0, %r1;"
    (result,) = run(halves, [x], ["b32"])
    np.testing.assert_array_equal(result, np.where(x < 16, 120, 376))


def fragments(matrix: np.ndarray, rows: int, each: int) -> list[np.ndarray]:
    """Registers of an A ([16, K]) or, transposed, a B ([8, K]) operand: `each` elements a register, lanes in fours."""
    registers = []
    half = matrix.shape[1] // 2
    for k in (0, 1):
        for row in range(0, rows, 8):
            lanes = np.zeros(32, U32)
            for lane in range(32):
                for e in range(each):
                    code = int(matrix[row + lane // 4, lane % 4 * each + e + k * half])
                    lanes[lane] |= U32(code << (32 // each * e))
            registers.append(lanes)
    return registers


@pytest.mark.parametrize("order", ["rounded once", "one by one", "halves, cut off"])
@pytest.mark.parametrize(
    ("shape", "kind", "depth"), [("m16n8k16", "bf16", 16), ("m16n8k16", "f16", 16), ("m16n8k32", "e4m3", 32)]
)
def test_matrix_products(shape, kind, depth, order):
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}[kind]
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(n, depth, generator=generator).to(dtype) for n in (16, 8))
    c = torch.randn(16, 8, generator=generator).numpy()
    codes = (
        (lambda t: t.view(torch.uint8).numpy()) if depth == 32 else (lambda t: t.view(torch.int16).numpy().view(U16))
    )
    each = 4 if depth == 32 else 2
    lane = np.arange(32)
    sums = [c[lane // 4 + r // 2 * 8, lane % 4 * 2 + r % 2] for r in range(4)]
    body = f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 {{%d0,%d1,%d2,%d3}},{{%a0,%a1,%a2,%a3}},{{%a4,%a5}},{{%a6,%a7,%a8,%a9}};"
    given = [*fragments(codes(a), 16, each), *fragments(codes(b), 8, each), *sums]
    result = run(body, given, ["b32"] * 4, tensor_order=order)
    exact = a.double() @ b.double().T + torch.from_numpy(c).double()
    for r in range(4):
        wanted = exact.numpy()[lane // 4 + r // 2 * 8, lane % 4 * 2 + r % 2]
        if order == "rounded once":
            np.testing.assert_array_equal(result[r].view(F32), wanted.astype(F32))
        np.testing.assert_allclose(result[r].view(F32), wanted, rtol=0, atol=4e-6)


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_matrices_are_loaded_and_stored(transposed):
    rows = np.random.default_rng(3).integers(0, 65536, (32, 8)).astype(U16)
    words = [rows[:, 2 * k].astype(U32) | rows[:, 2 * k + 1].astype(U32) << 16 for k in range(4)]
    place = "mov.u32 %r0, space; mad.lo.s32 %r1, %lane, 16, %r0;"
    body = f"{place} st.shared.v4.b32 [%r1], {{%a0,%a1,%a2,%a3}}; bar.warp.sync -1;"
    load = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%d0,%d1,%d2,%d3}}, [%r1];"
    result = run(body + load, words, ["b32"] * 4, shared=512)
    for x in range(4):
        matrix = rows[8 * x : 8 * x + 8]
        matrix = matrix.T if transposed else matrix
        pairs = matrix.reshape(8, 4, 2).astype(U32)
        np.testing.assert_array_equal(result[x], (pairs[..., 0] | pairs[..., 1] << 16).ravel())
    back = f"{place} stmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 [%r1], {{%a0,%a1,%a2,%a3}}; bar.warp.sync -1; {load}"
    assert all((got == word).all() for got, word in zip(run(back, words, ["b32"] * 4, shared=512), words, strict=True))


# ---- what is not known ----


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("tanh.approx.f32 %d0, %a0;", "the instruction 'tanh.approx.f32'"),
        ("add.sat.s32 %d0, %a0, %a0;", "the instruction 'add.sat.s32'"),
        ("add.s32 %d0, %a0, %a0, %a0;", "with 4 operands"),
        ("ld.local.b32 %d0, [%a0];", "ld.local.b32"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%d0}, {%a0}, {%a0}, {%a0};", "m8n8k4"),
        ("add.s32 %d0, %a0, %nothing;", "the operand '%nothing'"),
        ("bra elsewhere;", "the label 'elsewhere'"),
        ("cvt.u32.u16 %d0, %a0;", "registers of"),
    ],
)
def test_what_is_not_known_is_refused_by_name(body, said):
    with pytest.raises(PtxError, match=r"line \d+") as refused:
        Executable(module(body, ["b32"], ["b32"]))
    assert said in str(refused.value)


def test_another_architecture_is_refused():
    with pytest.raises(PtxError, match="not for sm_120a"):
        Executable(module("mov.b32 %d0, %a0;", ["b32"], ["b32"]).replace("sm_120a", "sm_90"))


def test_every_handler_has_one_name():
    names = []
    while (name := engine().ptx_name(len(names))) is not None:
        names.append(name.decode())
    assert len(names) == len(set(names)) > 150
