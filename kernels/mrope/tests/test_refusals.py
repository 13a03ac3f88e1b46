"""What the checked entry point refuses: a ValueError that names the argument, before anything runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from mrope_cpu_build import Case

from sm120.kernels.mrope import op
from sm120.kernels.mrope.axes import axis_map, pack_axis_map
from sm120.kernels.mrope.phase import phase_steps

THREE = "mrope_bf16_f32_d128_r128_a3_neox_plain_none"
ONE = "mrope_bf16_f32_d128_r128_a1_neox_plain_none"
PHASE = "mrope_bf16_phase_d128_r128_a3_neox_plain_none"


def prepare(name: str = THREE, tensors: dict[str, torch.Tensor] | None = None, **change: object) -> op.Launch:
    case = Case(name, tokens=6)
    names = ("qkv", "q_weight", "k_weight", "positions", "table")
    given = dict(zip(names, case.tensors(), strict=True)) | (tensors or {})
    return op.prepare(*given.values(), **(case.arguments() | change))


def qkv(rows: int = 6, columns: int = 1024, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(rows, columns, dtype=dtype)


def store(**change: torch.Tensor | float) -> op.Fp8Store:
    caches = [torch.zeros(9, 2, 128, dtype=torch.float8_e4m3fn) for _ in range(2)]
    return dataclasses.replace(op.Fp8Store(*caches, torch.arange(6)), **change)


def test_the_case_itself_is_accepted() -> None:
    assert prepare().variant == THREE
    assert prepare(store=store()).variant == THREE.replace("none", "fp8")


WRONG_TENSOR = {
    "qkv dtype": ({"qkv": qkv(dtype=torch.float32)}, "qkv: dtype is torch.float32, needs torch.bfloat16 or"),
    "qkv columns": ({"qkv": qkv(columns=1000)}, r"qkv: shape is \(6, 1000\), needs \(\*, 1024\)"),
    "qkv column stride": ({"qkv": qkv(columns=2048)[:, ::2]}, r"qkv: stride is \(2048, 2\), needs \(\*, 1\)"),
    "qkv alignment": ({"qkv": qkv(rows=7).flatten()[1 : 6 * 1024 + 1].view(6, 1024)}, "qkv: starts 2 bytes off"),
    "qkv row stride": ({"qkv": qkv(columns=1028)[:, :1024]}, "qkv: row stride is 1028, needs a multiple of 8"),
    "q_weight dtype": ({"q_weight": torch.ones(128)}, "q_weight: dtype is torch.float32, needs torch.bfloat16"),
    "k_weight dtype": ({"k_weight": torch.ones(128).half()}, "k_weight: dtype is torch.float16, needs torch.bfloat16"),
    "k_weight length": ({"k_weight": torch.ones(64).bfloat16()}, r"k_weight: shape is \(64,\), needs \(128\)"),
    "k_weight stride": ({"k_weight": torch.ones(256).bfloat16()[::2]}, "k_weight: .*needs to be contiguous"),
    "q_weight device": ({"q_weight": torch.ones(128, device="meta").bfloat16()}, "q_weight: device is meta, needs cpu"),
    "positions dtype": ({"positions": torch.zeros(3, 6)}, "positions: dtype is torch.float32, needs torch.int32 or"),
    "positions rows": ({"positions": torch.zeros(2, 6).long()}, r"positions: shape is \(2, 6\), needs \(3, 6\)"),
    "positions length": ({"positions": torch.zeros(3, 5).long()}, r"positions: shape is \(3, 5\), needs \(3, 6\)"),
    "positions column stride": ({"positions": torch.zeros(3, 12).long()[:, ::2]}, r"positions: stride is \(12, 2\)"),
    "table dtype": ({"table": torch.zeros(9, 128).half()}, "table: dtype is torch.float16, needs torch.float32 or"),
    "table width": ({"table": torch.zeros(9, 64)}, r"table: shape is \(9, 64\), needs \(\*, 128\)"),
    "table strides": ({"table": torch.zeros(9, 256)[:, :128]}, "table: .*needs to be contiguous"),
    "table without rows": ({"table": torch.zeros(0, 128)}, "table: has no rows for 6 tokens, needs at least 1"),
    "phase length": ({"table": torch.zeros(32).long()}, r"table: shape is \(32,\), needs \(64\)"),
}


@pytest.mark.parametrize(("tensors", "says"), WRONG_TENSOR.values(), ids=WRONG_TENSOR)
def test_wrong_tensor(tensors: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        prepare(tensors=tensors)


WRONG_ARGUMENT = {
    "head_dim": ({"head_dim": 80}, "head_dim: got 80, needs one of"),
    "odd rotary_dim": ({"rotary_dim": 63}, "rotary_dim: got 63, needs a multiple of 16"),
    "rotary_dim of half chunks": ({"rotary_dim": 24}, "rotary_dim: got 24, needs a multiple of 16"),
    "rotary_dim past the head": ({"rotary_dim": 144}, "rotary_dim: got 144"),
    "no q heads": ({"num_q_heads": 0}, "num_q_heads: got 0, needs an int in 1..65535"),
    "negative kv heads": ({"num_kv_heads": -1}, "num_kv_heads: got -1"),
    "map missing": ({"axis_map": None}, "axis_map: missing, but positions have 3 axes"),
    "map too short": ({"axis_map": [0] * 63}, "axis_map: got 63 pairs, needs rotary_dim / 2 = 64"),
    "map axis": ({"axis_map": [0] * 63 + [3]}, "axis_map: got axis 3 for pair 63"),
    "factor with cache": ({"attention_factor": 1.1}, "attention_factor: got 1.1, needs 1 with a cache"),
    "out dtype": ({"out": qkv(dtype=torch.float16)}, "out: dtype is torch.float16"),
    "out width": ({"out": qkv(columns=512)}, r"out: shape is \(6, 512\), needs 768 columns"),
    "out rows": ({"out": qkv(rows=5)}, r"out: shape is \(5, 1024\), needs \(6, \*\)"),
    "cache dtype": ({"store": store(k_cache=torch.zeros(9, 2, 128))}, "k_cache: dtype is torch.float32"),
    "cache heads": ({"store": store(v_cache=torch.zeros(9, 3, 128).to(torch.float8_e4m3fn))}, "v_cache: shape is"),
    "slots dtype": ({"store": store(slots=torch.arange(6).int())}, "slots: dtype is torch.int32"),
    "slots length": ({"store": store(slots=torch.arange(5))}, r"slots: shape is \(5,\), needs \(6\)"),
    "scale": ({"store": store(k_scale=0.0)}, "k_scale: got 0.0, needs a positive number"),
    "scale nan": ({"store": store(v_scale=float("nan"))}, "v_scale: got nan, needs a positive number"),
}


@pytest.mark.parametrize(("change", "says"), WRONG_ARGUMENT.values(), ids=WRONG_ARGUMENT)
def test_wrong_argument(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        prepare(**change)


def test_map_without_three_axes() -> None:
    with pytest.raises(ValueError, match="axis_map: given, but positions have 1 axis"):
        prepare(ONE, axis_map=[0] * 64)


@pytest.mark.parametrize("bad", [-1, 600, 2**31, 2**40])
def test_positions_out_of_the_cache_are_named_when_asked_for(bad: int) -> None:
    positions = torch.zeros(3, 6, dtype=torch.int64)
    positions[2, 5] = bad
    with pytest.raises(ValueError, match=rf"positions: values are in .*{bad}.*, needs 0\.\."):
        prepare(tensors={"positions": positions}, check_positions=True)


def test_no_tokens_need_no_rows_of_the_table() -> None:
    empty = {"qkv": qkv(rows=0), "positions": torch.zeros(3, 0).long(), "table": torch.zeros(0, 128)}
    assert prepare(tensors=empty).blocks == 0


def test_phase_positions_end_at_2_to_31() -> None:
    positions = torch.full((3, 6), 2**31)
    with pytest.raises(ValueError, match=r"positions: values are in 2147483648\.\.2147483648, needs 0\.\.2147483647"):
        prepare(PHASE, tensors={"positions": positions}, check_positions=True)


def test_slots_out_of_the_cache_are_named_when_asked_for() -> None:
    with pytest.raises(ValueError, match="slots: values reach 9, needs at most 8"):
        prepare(store=store(slots=torch.tensor([0, 1, 2, 3, 4, 9])), check_positions=True)


def test_more_heads_than_32_bits_count() -> None:
    tokens = 2**31 // 6 + 1
    big = torch.empty(1, 1024, dtype=torch.bfloat16).expand(tokens, 1024)
    with pytest.raises(ValueError, match="qkv: 357913942 tokens of 6 heads overflow a 32-bit count"):
        prepare(tensors={"qkv": big})


def test_cpu_tensors_are_refused_by_the_op_itself() -> None:
    case = Case(THREE)
    with pytest.raises(ValueError, match="qkv: device is cpu, needs cuda"):
        op.fused_qk_norm_mrope(*case.tensors(), **case.arguments())


@pytest.mark.parametrize("section", [[24, 20, 21], [64, 0], [65, 0, -1], [22, 22]], ids=str)
def test_wrong_section_sum(section: list[int]) -> None:
    with pytest.raises(ValueError, match=r"mrope_section: got .* needs three sizes that add up to rotary_dim / 2 = 64"):
        axis_map(section, "interleaved", 128)


def test_other_wrong_maps() -> None:
    with pytest.raises(ValueError, match="layout: got 'blocked'"):
        axis_map([1, 1, 1], "blocked", 6)
    with pytest.raises(ValueError, match="rotary_dim: got 7"):
        axis_map([1, 1, 1], "sectioned", 7)
    with pytest.raises(ValueError, match="axis_map: got 129 pairs, needs at most 128"):
        pack_axis_map([0] * 129)


def test_wrong_frequencies() -> None:
    with pytest.raises(ValueError, match="rotary_dim: got 3"):
        phase_steps(3, 1e4)
    with pytest.raises(ValueError, match=r"base: got 1\.0"):
        phase_steps(64, 1.0)
    with pytest.raises(ValueError, match="factor: got nan"):
        phase_steps(64, 1e4, factor=float("nan"))
