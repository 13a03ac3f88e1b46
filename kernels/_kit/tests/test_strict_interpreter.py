"""Every bf16 and fp8 code through interpreted Triton against numpy's own arithmetic, and every refusal."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from sm120.kernels._kit import strict_interpreter as strict
from sm120.kernels._kit.launch_memory import OutOfBoundsError

pytestmark = pytest.mark.interpreter
FORMATS = {  # name: (torch dtype, bits, mantissa bits, exponent bias, bits of the smallest NaN, largest finite)
    "bf16": (torch.bfloat16, 16, 7, 127, 0x7F81, None),
    "e4m3": (torch.float8_e4m3fn, 8, 3, 7, 0x7F, 448.0),
    "e5m2": (torch.float8_e5m2, 8, 2, 15, 0x7D, 57344.0),
}


def value_of(code: np.ndarray, name: str) -> np.ndarray:
    """The definition of a floating-point code, in float64, independent of torch and Triton."""
    _, bits, mantissa_bits, bias, first_nan, _ = FORMATS[name]
    magnitude = code.astype(np.int64) & ((1 << (bits - 1)) - 1)
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    normal = (1 + mantissa / 2.0**mantissa_bits) * 2.0 ** (exponent - bias)
    value = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias - mantissa_bits), normal)
    if name != "e4m3":
        value = np.where(magnitude == first_nan - 1, np.inf, value)
    value = np.where(magnitude >= first_nan, np.nan, value)
    return np.where(code.astype(np.int64) >> (bits - 1), -value, value)


def nearest_even(x: np.ndarray, name: str) -> np.ndarray:
    """Codes of float32 `x` by search among all finite values: ties to the even code, saturating when fp8."""
    bits = FORMATS[name][1]
    codes = np.arange(1 << (bits - 1))
    values = value_of(codes, name)
    codes, values = codes[np.isfinite(values)], values[np.isfinite(values)]
    magnitude = np.abs(x.astype(np.float64))
    above = np.clip(np.searchsorted(values, magnitude), 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    up = (magnitude - low > high - magnitude) | ((magnitude - low == high - magnitude) & (codes[above] % 2 == 0))
    code = np.where(up, codes[above], codes[above - 1])
    if name == "bf16":  # overflow begins half a step past the largest finite value
        step = values[-1] - values[-2]
        code = np.where(magnitude >= values[-1] + step / 2, 0x7F80, code)
    else:
        code = np.where(magnitude > values[-1], codes[-1], code)
    code = code | (np.signbit(x).astype(np.int64) << (bits - 1))
    return np.where(np.isnan(x), {"bf16": 0x7FFF, "e4m3": 0x7F, "e5m2": 0x7F}[name], code)


@triton.jit
def convert(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n).to(y.dtype.element_ty), mask=at < n)


def run_convert(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    y = torch.zeros(x.numel(), dtype=dtype)
    convert[(triton.cdiv(x.numel(), 65536),)](x, y, x.numel(), BLOCK=65536)
    return y


def all_codes(name: str) -> tuple[np.ndarray, torch.Tensor]:
    dtype, bits = FORMATS[name][:2]
    codes = np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8)
    return codes, torch.from_numpy(codes.view(np.int16) if bits == 16 else codes).view(dtype)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16])
def test_every_code_decodes_exactly(name: str, wide: torch.dtype) -> None:
    codes, x = all_codes(name)
    got = run_convert(x, wide).numpy()
    with np.errstate(over="ignore"):
        want = value_of(codes, name).astype(got.dtype)
    assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_survives_a_round_trip(name: str) -> None:
    codes, x = all_codes(name)
    wide = run_convert(x, torch.float32)
    got = run_convert(wide, FORMATS[name][0]).view(torch.int16 if name == "bf16" else torch.uint8).numpy()
    assert np.array_equal(got.view(codes.dtype), nearest_even(wide.numpy(), name).astype(codes.dtype))


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_is_right_at_and_beside_every_tie(name: str) -> None:
    codes, _ = all_codes(name)
    values = value_of(codes, name)
    values = np.unique(values[np.isfinite(values)])
    ties = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    inf = np.float32("inf")
    far = np.array([449, 463, 464, 465, 480, 57345, 61440, 1e9, 3.4e38, np.inf, np.nan], np.float32)
    x = np.concatenate([ties, np.nextafter(ties, inf), np.nextafter(ties, -inf), far, -far, np.zeros(1, np.float32)])
    got = run_convert(torch.from_numpy(x), FORMATS[name][0]).view(torch.int16 if name == "bf16" else torch.uint8)
    assert np.array_equal(got.numpy().view(codes.dtype), nearest_even(x, name).astype(codes.dtype))


@triton.jit
def matmul(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = i[:, None] * N + i[None, :]
    tl.store(c + tile, tl.dot(tl.load(a + tile), tl.load(b + tile)))


@pytest.mark.parametrize("dtype", [f[0] for f in FORMATS.values()], ids=FORMATS)
def test_dot_multiplies_values_and_not_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(32, 32).to(dtype), torch.randn(32, 32).to(dtype)
    c = torch.full((32, 32), float("nan"))
    matmul[(1,)](a, b, c, N=32)
    assert torch.allclose(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@triton.jit
def moves(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i, mask=i < N - 1, other=1.5)
    v = tl.reshape(tl.trans(tl.reshape(v, (2, N // 2))), (N,))
    tl.store(y + i, tl.where(i % 2 == 0, v, tl.full((N,), -2.0, x.dtype.element_ty)))


@pytest.mark.parametrize("dtype", [f[0] for f in FORMATS.values()], ids=FORMATS)
def test_moving_bits_keeps_them(dtype: torch.dtype) -> None:
    x = torch.arange(16).float().to(dtype)
    y = torch.zeros(16, dtype=dtype)
    moves[(1,)](x, y, N=16)
    want = x.float()
    want[15] = 1.5
    want = want.view(2, 8).t().reshape(16)
    want[1::2] = -2.0
    assert torch.equal(y.float(), want)


REFUSED = {
    "add": "v + v",
    "scale": "v * 2.0",
    "negate": "-v",
    "compare": "v > v",
    "fma": "tl.fma(v, v, v)",
    "abs": "tl.abs(v)",
    "sum": "tl.sum(v, 0)",
    "sort": "tl.sort(v)",
    "from int": "tl.arange(0, N).to(x.dtype.element_ty)",
    "from double": "v.to(tl.float32).to(tl.float64).to(x.dtype.element_ty)",
    "round to zero": 'v.to(tl.float32).to(x.dtype.element_ty, fp_downcast_rounding="rtz")',
    "atomic add": "tl.atomic_add(x + tl.arange(0, N), v)",
}
KERNEL = """import triton
import triton.language as tl

@triton.jit
def kernel(x, y, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    w = {expression}
    tl.store(y + tl.arange(0, N), w.to(tl.float32))
"""


@pytest.mark.parametrize("expression", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "e4m3"])
def test_anything_else_raises_instead_of_being_wrong(expression: str, dtype: torch.dtype, tmp_path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL.format(expression=expression))
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(Exception) as caught:
        module.kernel[(1,)](torch.ones(16).to(dtype), torch.zeros(16), N=16)
    chain, error = [], caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    own_refusal = re.search("cannot cast|does not support", str(caught.value))
    assert own_refusal or any(isinstance(error, strict.StrictInterpreterError) for error in chain), chain


@triton.jit
def promoted(x, y, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    other = tl.load(x + N - 1 - tl.arange(0, N))
    tl.store(y + tl.arange(0, N), tl.maximum(v, other).to(tl.float32))
    tl.store(y + N, tl.max(v, 0).to(tl.float32))
    tl.store(y + N + 1 + tl.arange(0, N), tl.cumsum(v, 0).to(tl.float32))


def test_what_triton_promotes_to_fp32_itself_is_right() -> None:
    x = torch.tensor([-2.0, 3.0, -5.0, 1.0, 0.5, 7.0, -8.0, 2.5]).bfloat16()
    y = torch.full((17,), float("nan"))
    promoted[(1,)](x, y, N=8)
    assert torch.equal(y, torch.cat([torch.maximum(x, x.flip(0)).float(), x.max()[None].float(), x.float().cumsum(0)]))


@triton.jit
def scaled(a, b, scale, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = i[:, None] * N + i[None, :]
    scales = tl.load(scale + i[:, None] + tl.arange(0, 1)[None, :])
    tl.store(c + tile, tl.dot_scaled(tl.load(a + tile), scales, "e4m3", tl.load(b + tile), None, "e4m3"))


def test_block_scaled_dot_decodes_its_scales() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(32, 32).to(torch.float8_e4m3fn), torch.randn(32, 32).to(torch.float8_e4m3fn)
    scale = torch.arange(112, 144, dtype=torch.uint8)
    c = torch.full((32, 32), float("nan"))
    scaled[(1,)](a, b, scale, c, N=32)
    want = a.double() * 2.0 ** (scale.double()[:, None] - 127) @ b.double()
    assert torch.allclose(c.double(), want, rtol=1e-5, atol=1e-30)


def test_fp32_and_integers_are_left_alone() -> None:
    x = torch.randn(7)
    assert torch.equal(run_convert(x, torch.float16), x.half())
    assert torch.equal(run_convert(torch.arange(7), torch.float32), torch.arange(7).float())


@triton.jit
def move(source, target, from_at, to_at, count, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(target + to_at + i, tl.load(source + from_at + i, mask=i < count), mask=i < count)


@triton.jit
def add(target, at):
    tl.atomic_add(target + at, 1)


@pytest.mark.parametrize(
    ("from_at", "to_at", "count", "message"),
    [
        (0, -1, 4, "masked_store: 1 of 4 elements lie outside every tensor of the launch, the first at byte -4 of 32"),
        (0, 5, 4, "masked_store: 1 of 4 elements lie outside every tensor of the launch, the first at byte 32 of 32"),
        (8, 0, 4, "masked_load: 4 of 4 elements lie outside every tensor of the launch, the first at byte 32 of 32"),
        (2**40, 0, 1, "masked_load: 1 of 1 "),
    ],
    ids=["before", "across_the_end", "past", "far"],
)
def test_an_access_outside_every_tensor_is_refused_before_it_happens(from_at, to_at, count, message) -> None:
    source, target = torch.ones(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with pytest.raises(InterpreterError) as caught:
        move[(1,)](source, target, from_at, to_at, count, BLOCK=8)
    assert isinstance(caught.value.__cause__, OutOfBoundsError)
    assert message in str(caught.value.__cause__)
    assert not target.any(), "stored in part"


def test_an_atomic_outside_every_tensor_is_refused() -> None:
    counter = torch.zeros(4, dtype=torch.int32)
    add[(1,)](counter, 3)
    with pytest.raises(InterpreterError) as caught:
        add[(1,)](counter, 4)
    assert isinstance(caught.value.__cause__, OutOfBoundsError)
    assert counter.tolist() == [0, 0, 0, 1]


def test_a_view_reaches_its_whole_storage_and_masked_lanes_reach_nothing() -> None:
    memory = torch.arange(16, dtype=torch.int32)
    move[(1,)](memory[4:8], memory[12:14], -4, 0, 4, BLOCK=8)
    assert memory[12:].tolist() == [0, 1, 2, 3]
    move[(1,)](memory, memory, 2**40, -(2**40), 0, BLOCK=8)


def test_storages_that_share_memory_count_as_one() -> None:
    whole = np.arange(32, dtype=np.int32)
    inside = torch.from_numpy(whole[4:8])
    move[(1,)](torch.from_numpy(whole), inside, 20, 8, 4, BLOCK=4)
    assert whole[12:16].tolist() == [20, 21, 22, 23]


def test_another_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.9.0")
    with pytest.raises(RuntimeError, match=r"Triton is 3\.9\.0, needs exactly 3\.8\.0"), strict.strict_interpreter():
        pass


def test_the_interpreter_is_restored_at_the_end() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    outside = InterpreterBuilder.create_dot
    with strict.strict_interpreter(), strict.strict_interpreter():
        pass
    assert InterpreterBuilder.create_dot is outside
