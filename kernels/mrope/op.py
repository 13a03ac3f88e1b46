"""Fused per-head RMSNorm and rotary embedding of Q and K for one- and three-axis positions: the checked entry point.

Registered as the torch op `sm120::fused_qk_norm_mrope`, so that a traced model can call it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sm120.kernels._lib import fatbin
from sm120.kernels._lib.capability import require
from sm120.kernels._lib.contracts import check_int, check_tensor
from sm120.kernels.mrope.axes import pack_axis_map

CAPABILITIES = [(12, 0)]
HEAD_DIMS = (64, 128, 256)
THREADS = 128
MAX_POSITION = 2**31
MAX_HEADS_OF_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class Fp8Store:
    """Where the rotated K and V also go, as E4M3: `value / scale`, clamped to ±448.

    k_cache, v_cache `[slots, num_kv_heads, head_dim]` float8_e4m3fn, any slot stride that is a multiple of 8;
    slots `[T]` int64, one a token, a negative one stores nothing.
    """

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slots: torch.Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0


class Params(ctypes.Structure):
    """`fused_qk_norm_mrope::Params` of the .cuh, field for field."""

    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("q_weight", ctypes.c_void_p),
        ("k_weight", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("axes", ctypes.c_uint8 * 32),
        ("qkv_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("position_stride", ctypes.c_int64),
        ("position_limit", ctypes.c_int64),
        ("num_tokens", ctypes.c_uint32),
        ("num_q_heads", ctypes.c_uint32),
        ("num_kv_heads", ctypes.c_uint32),
        ("positions_are_int64", ctypes.c_uint32),
        ("eps", ctypes.c_float),
        ("attention_factor", ctypes.c_float),
        ("k_cache", ctypes.c_void_p),
        ("v_cache", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("k_cache_stride", ctypes.c_int64),
        ("v_cache_stride", ctypes.c_int64),
        ("k_inverse_scale", ctypes.c_float),
        ("v_inverse_scale", ctypes.c_float),
    )


@dataclass(frozen=True)
class Launch:
    """A checked call: which compiled variant, with which parameters, in how many blocks of THREADS."""

    variant: str
    params: Params
    blocks: int


def fused_qk_norm_mrope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    eps: float,
    axis_map: Sequence[int] | None = None,
    neox: bool = True,
    gemma: bool = False,
    attention_factor: float = 1.0,
    out: torch.Tensor | None = None,
    store: Fp8Store | None = None,
    check_positions: bool = False,
) -> torch.Tensor:
    """RMSNorm every Q and K head of `qkv`, turn its first `rotary_dim` dims, write the heads to `out` and return it.

    qkv        `[T, (num_q_heads + 2 * num_kv_heads) * head_dim]` bf16 or fp16, unit column stride, row stride and
               address multiples of 16 bytes; V heads are read only with `store`
    q_weight, k_weight   `[head_dim]` of qkv's dtype; `gemma` means that they are stored less 1
    positions  `[T]`, or `[3, T]` (temporal, height, width) with any row stride; int32 or int64, unit column stride
    table      cos then sin, `[length, rotary_dim]`, float32 or qkv's dtype, contiguous; or int64 `[rotary_dim / 2]`
               from `phase_steps`, and then the kernel computes the angles and `attention_factor` scales cos and sin
    axis_map   axis of each rotary pair (`axes.axis_map`); required with `[3, T]` positions, refused without
    out        `[T, >= (num_q_heads + num_kv_heads) * head_dim]`, default: qkv itself (in place)
    check_positions   look at the values of positions and slots first (a device synchronisation); without it a token
               whose position is outside the table comes out as NaN, and slots are trusted

    Raises ValueError, naming the tensor, for anything else, and naming the variant where variants.def does not list
    it; NoDevice where no (12, 0) device can run it.
    Source: issue sgl-project/sglang#35345; maths in reference.py.
    """
    if store is None:
        caches: tuple[torch.Tensor | None, ...] = (None, None, None)
        scales = (1.0, 1.0)
    else:
        caches, scales = (store.k_cache, store.v_cache, store.slots), (store.k_scale, store.v_scale)
    torch.ops.sm120.fused_qk_norm_mrope(
        qkv if out is None else out, qkv, q_weight, k_weight, positions, table, *caches, num_q_heads, num_kv_heads,
        head_dim, rotary_dim, eps, axis_map, neox, gemma, attention_factor, *scales, check_positions,
    )  # fmt: skip
    return qkv if out is None else out


@torch.library.custom_op("sm120::fused_qk_norm_mrope", mutates_args=("out", "k_cache", "v_cache"))
def _fused_qk_norm_mrope(
    out: torch.Tensor,
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
    slots: torch.Tensor | None,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    eps: float,
    axis_map: Sequence[int] | None,
    neox: bool,
    gemma: bool,
    attention_factor: float,
    k_scale: float,
    v_scale: float,
    check_positions: bool,
) -> None:
    # the checks look at addresses, which a traced call does not have: they belong to the run
    store = None
    if k_cache is not None or v_cache is not None or slots is not None:
        if k_cache is None or v_cache is None or slots is None:
            raise ValueError("k_cache, v_cache, slots: some are missing, needs all three or none")
        store = Fp8Store(k_cache, v_cache, slots, k_scale, v_scale)
    launch = prepare(
        qkv, q_weight, k_weight, positions, table, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads,
        head_dim=head_dim, rotary_dim=rotary_dim, eps=eps, axis_map=axis_map, neox=neox, gemma=gemma,
        attention_factor=attention_factor, out=out, store=store, check_positions=check_positions,
    )  # fmt: skip
    if qkv.device.type != "cuda":
        raise ValueError(f"qkv: device is {qkv.device}, needs cuda")
    require(torch.cuda.get_device_capability(qkv.device), "mrope", CAPABILITIES)
    if launch.blocks:
        stream = torch.cuda.current_stream(qkv.device).cuda_stream
        compiled = fatbin.load("mrope", qkv.device.index)
        compiled.launch(launch.variant, (launch.blocks, 1, 1), (THREADS, 1, 1), launch.params, stream=stream)


@_fused_qk_norm_mrope.register_fake
def _(out, qkv, q_weight, k_weight, positions, table, k_cache, v_cache, slots, *options):
    return None


def prepare(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    eps: float,
    axis_map: Sequence[int] | None = None,
    neox: bool = True,
    gemma: bool = False,
    attention_factor: float = 1.0,
    out: torch.Tensor | None = None,
    store: Fp8Store | None = None,
    check_positions: bool = False,
) -> Launch:
    """Check the arguments of `fused_qk_norm_mrope`, on whatever device they are, and lay them out for the kernel."""
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim: got {head_dim}, needs one of {HEAD_DIMS}")
    check_int("num_q_heads", num_q_heads, 1, 65535)
    check_int("num_kv_heads", num_kv_heads, 1, 65535)
    multiple = 16 if neox else 8
    if not 0 < rotary_dim <= head_dim or rotary_dim % multiple:
        raise ValueError(f"rotary_dim: got {rotary_dim}, needs a multiple of {multiple} in {multiple}..{head_dim}")
    device = qkv.device
    row = (num_q_heads + 2 * num_kv_heads) * head_dim
    check_tensor("qkv", qkv, dtype=(torch.bfloat16, torch.float16), shape=(None, row), stride=(None, 1), align=16)
    num_tokens = qkv.shape[0]
    heads = num_q_heads + num_kv_heads * (2 if store else 1)
    if num_tokens * heads > MAX_HEADS_OF_TOKENS:
        raise ValueError(f"qkv: {num_tokens} tokens of {heads} heads overflow a 32-bit count, split the batch")
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        check_tensor(name, weight, dtype=qkv.dtype, shape=(head_dim,), device=device, contiguous=True, align=16)
    target = qkv if out is None else out
    check_tensor("out", target, dtype=qkv.dtype, shape=(num_tokens, None), stride=(None, 1), device=device, align=16)
    if target.shape[1] < (num_q_heads + num_kv_heads) * head_dim:
        raise ValueError(
            f"out: shape is {tuple(target.shape)}, needs {(num_q_heads + num_kv_heads) * head_dim} columns"
        )
    for name, tensor in (("qkv", qkv), ("out", target)):
        if tensor.stride(0) % 8 and num_tokens > 1:
            raise ValueError(f"{name}: row stride is {tensor.stride(0)}, needs a multiple of 8 (16 bytes)")

    axes = (positions.dim() == 2 and 3) or 1
    shape = (3, num_tokens) if positions.dim() == 2 else (num_tokens,)
    stride = (None, 1) if positions.dim() == 2 else (1,)
    check_tensor("positions", positions, dtype=(torch.int32, torch.int64), shape=shape, stride=stride, device=device)
    if (axis_map is None) != (axes == 1):
        raise ValueError(
            f"axis_map: {'missing' if axis_map is None else 'given'}, but positions have {axes} "
            f"{'axis' if axes == 1 else 'axes'}: needs one exactly with three"
        )
    packed = (0, 0, 0, 0)
    if axis_map is not None:
        if len(axis_map) != rotary_dim // 2:
            raise ValueError(f"axis_map: got {len(axis_map)} pairs, needs rotary_dim / 2 = {rotary_dim // 2}")
        packed = pack_axis_map(axis_map)

    if table.dtype == torch.int64:
        kind, limit = "phase", MAX_POSITION
        check_tensor("table", table, shape=(rotary_dim // 2,), device=device, contiguous=True, align=16)
    else:
        kind = "f32" if table.dtype == torch.float32 else "same"
        check_tensor(
            "table", table, dtype=(torch.float32, qkv.dtype), shape=(None, rotary_dim), device=device, contiguous=True,
            align=16,
        )  # fmt: skip
        limit = table.shape[0]
        if limit > MAX_POSITION:
            raise ValueError(f"table: {limit} rows overflow a 32-bit position, needs at most 2^31")
        # a token whose position is outside the table is NaN, but the kernel reads row 0 for it
        if num_tokens and limit == 0:
            raise ValueError(f"table: has no rows for {num_tokens} tokens, needs at least 1")
        if attention_factor != 1.0:
            raise ValueError(f"attention_factor: got {attention_factor}, needs 1 with a cache, which holds it already")
    if check_positions and num_tokens:
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= limit:
            raise ValueError(f"positions: values are in {low}..{high}, needs 0..{limit - 1}")

    params = Params(
        qkv=qkv.data_ptr(), out=target.data_ptr(), q_weight=q_weight.data_ptr(), k_weight=k_weight.data_ptr(),
        positions=positions.data_ptr(), table=table.data_ptr(),
        axes=(ctypes.c_uint8 * 32)(*b"".join(word.to_bytes(8, "little") for word in packed)),
        qkv_stride=qkv.stride(0), out_stride=target.stride(0),
        position_stride=positions.stride(0) if axes == 3 else 0, position_limit=limit,
        num_tokens=num_tokens, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads,
        positions_are_int64=positions.dtype == torch.int64, eps=eps, attention_factor=attention_factor,
    )  # fmt: skip
    if store is not None:
        _lay_out_store(params, store, num_tokens, num_kv_heads, head_dim, device, check_positions)
    scalar = "bf16" if qkv.dtype == torch.bfloat16 else "fp16"
    variant = (
        f"mrope_{scalar}_{kind}_d{head_dim}_r{rotary_dim}_a{axes}_{'neox' if neox else 'gptj'}"
        f"_{'gemma' if gemma else 'plain'}_{'fp8' if store else 'none'}"
    )
    heads_per_block = THREADS // (head_dim // 16)
    return Launch(variant, params, -(-num_tokens * heads // heads_per_block))


def _lay_out_store(
    params: Params,
    store: Fp8Store,
    num_tokens: int,
    num_kv_heads: int,
    head_dim: int,
    device: torch.device,
    check_slots: bool,
) -> None:
    for name, cache in (("k_cache", store.k_cache), ("v_cache", store.v_cache)):
        check_tensor(
            name, cache, dtype=torch.float8_e4m3fn, shape=(None, num_kv_heads, head_dim), stride=(None, head_dim, 1),
            device=device, align=8,
        )  # fmt: skip
        if cache.shape[0] > 1 and cache.stride(0) % 8:
            raise ValueError(f"{name}: slot stride is {cache.stride(0)}, needs a multiple of 8 bytes")
    check_tensor("slots", store.slots, dtype=torch.int64, shape=(num_tokens,), device=device, contiguous=True)
    rows = min(store.k_cache.shape[0], store.v_cache.shape[0])
    if check_slots and num_tokens and int(store.slots.max()) >= rows:
        raise ValueError(f"slots: values reach {int(store.slots.max())}, needs at most {rows - 1}")
    for name, scale in (("k_scale", store.k_scale), ("v_scale", store.v_scale)):
        if not scale > 0.0:
            raise ValueError(f"{name}: got {scale}, needs a positive number")
    params.k_cache, params.v_cache = store.k_cache.data_ptr(), store.v_cache.data_ptr()
    params.slots = store.slots.data_ptr()
    params.k_cache_stride, params.v_cache_stride = store.k_cache.stride(0), store.v_cache.stride(0)
    params.k_inverse_scale, params.v_inverse_scale = 1.0 / store.k_scale, 1.0 / store.v_scale
