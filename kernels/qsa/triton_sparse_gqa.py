"""Sparse grouped-query attention that reads its selected K/V rows in place from a paged KV pool.

Every query row attends a list of tokens of its own. A first small kernel turns the list into pool slots and closes
its holes; the attention kernel then walks exactly the valid slots. No packed copy of the selected K/V is made.
An FP8 pool is converted to FP16, which holds every E4M3 value exactly, so no query or key bit is lost to the format.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_LOG2_E = 1.4426950408889634
# Padding of the query heads of one KV head: the smallest tile that the tensor cores take.
_BLOCK_M = 16


class SelectedSlots(NamedTuple):
    """Valid pool slots of every query row, first ``counts[row]`` entries of ``slots[row]``."""

    slots: torch.Tensor  # [rows, width] int32
    counts: torch.Tensor  # [rows] int32


class LaunchConfig(NamedTuple):
    """Tokens per iteration and warps per program; one stage, because occupancy hides the loads."""

    block_n: int
    num_warps: int


FP8_CONFIG = LaunchConfig(block_n=64, num_warps=4)
WIDE_CONFIG = LaunchConfig(block_n=32, num_warps=4)


def select_slots(
    indices: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor | None,
    table_rows: torch.Tensor,
) -> SelectedSlots:
    """Pool slots of the selected tokens, holes closed.

    indices     [rows, width] int32 token positions in any order; negative ones, and those not below
                ``lengths[row]``, are skipped wherever they stand
    lengths     [rows] int, tokens the row's request has
    table       [requests, max tokens] int32 slot of every token, or None for packed K/V
    table_rows  [rows] int, the row's line in ``table``; without a table, the slot of its token 0
    """
    rows, width = indices.shape
    slots = torch.empty((rows, width), dtype=torch.int32, device=indices.device)
    counts = torch.empty((rows,), dtype=torch.int32, device=indices.device)
    if rows:
        _select_slots[(rows,)](
            indices=indices,
            lengths=lengths,
            table=table if table is not None else slots,
            table_rows=table_rows,
            slots=slots,
            counts=counts,
            width=width,
            stride_index_row=indices.stride(0),
            stride_table_row=table.stride(0) if table is not None else 0,
            HAS_TABLE=table is not None,
            BLOCK=triton.next_power_of_2(width),
            num_warps=8,
        )
    return SelectedSlots(slots, counts)


def sparse_gqa(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    selected: SelectedSlots,
    scale: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    splits: int = 1,
) -> torch.Tensor:
    """Attention of every query row over its selected slots, [rows, query heads, dim] in q's dtype.

    q               [rows, query heads, dim]
    k_pool, v_pool  [slots, KV heads, dim], last axis contiguous; FP8 E4M3 holds ``x / scale``
    splits          programs that share one row; a row without slots gives zeros
    """
    rows, num_q_heads, head_dim = q.shape
    num_kv_heads = k_pool.shape[1]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if rows == 0:
        return out
    is_fp8 = v_pool.dtype == torch.float8_e4m3fn
    config = FP8_CONFIG if is_fp8 else WIDE_CONFIG
    partial = lse = out
    if splits > 1:
        shape = (rows, splits, num_q_heads)
        partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    # Two FP8 values travel as one 16-bit element, so that the transposed operand of
    # the second product can be read with ldmatrix instead of byte by byte.
    values = v_pool.view(torch.int16) if is_fp8 else v_pool
    group = num_q_heads // num_kv_heads
    _sparse_gqa[(rows * splits, num_kv_heads)](
        q=q,
        k=k_pool,
        v=values,
        slots=selected.slots,
        counts=selected.counts,
        out=out,
        partial=partial,
        lse=lse,
        scale_log2=scale * k_scale * _LOG2_E,
        v_scale=v_scale,
        stride_q_row=q.stride(0),
        stride_q_head=q.stride(1),
        stride_k_slot=k_pool.stride(0),
        stride_k_head=k_pool.stride(1),
        stride_v_slot=values.stride(0),
        stride_v_head=values.stride(1),
        stride_slot_row=selected.slots.stride(0),
        GROUP=group,
        BLOCK_M=_BLOCK_M,
        BLOCK_N=config.block_n,
        HEAD_DIM=head_dim,
        SPLITS=splits,
        PAIRED_VALUES=is_fp8,
        num_warps=config.num_warps,
        num_stages=1,
    )
    if splits > 1:
        _combine[(rows, num_q_heads)](partial, lse, out, SPLITS=splits, HEAD_DIM=head_dim, num_warps=4)
    return out


def choose_splits(rows: int, num_kv_heads: int, width: int, num_sms: int) -> int:
    """Programs per row that fill ``num_sms`` three deep; each keeps at least 128 tokens. No device is read."""
    wanted = triton.cdiv(3 * num_sms, max(rows * num_kv_heads, 1))
    return max(1, min(wanted, width // 128, 16))


@triton.jit
def _select_slots(
    indices,
    lengths,
    table,
    table_rows,
    slots,
    counts,
    width,
    stride_index_row,
    stride_table_row,
    HAS_TABLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    position = tl.load(indices + row * stride_index_row + cols, mask=cols < width, other=-1)
    valid = (position >= 0) & (position < tl.load(lengths + row))
    table_row = tl.load(table_rows + row).to(tl.int64)
    if HAS_TABLE:
        slot = tl.load(table + table_row * stride_table_row + position, mask=valid, other=0)
    else:
        slot = table_row + position
    rank = tl.cumsum(valid.to(tl.int32), 0)
    tl.store(slots + row * width + rank - 1, slot.to(tl.int32), mask=valid)
    tl.store(counts + row, tl.sum(valid.to(tl.int32), 0))


@triton.jit
def _sparse_gqa(
    q,
    k,
    v,
    slots,
    counts,
    out,
    partial,
    lse,
    scale_log2,
    v_scale,
    stride_q_row,
    stride_q_head,
    stride_k_slot,
    stride_k_head,
    stride_v_slot,
    stride_v_head,
    stride_slot_row,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    PAIRED_VALUES: tl.constexpr,
):
    if PAIRED_VALUES:
        OPERAND: tl.constexpr = tl.float16
    else:
        OPERAND: tl.constexpr = k.dtype.element_ty
    row = (tl.program_id(0) // SPLITS).to(tl.int64)
    split = tl.program_id(0) % SPLITS
    kv_head = tl.program_id(1).to(tl.int64)
    count = tl.load(counts + row)
    span = tl.cdiv(tl.cdiv(count, SPLITS), BLOCK_N) * BLOCK_N
    first = split * span
    last = tl.minimum(first + span, count)

    heads = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    halves = tl.arange(0, HEAD_DIM // 2)
    cols = tl.arange(0, BLOCK_N)
    live = heads < GROUP
    q_heads = kv_head * GROUP + heads
    queries = tl.load(
        q + row * stride_q_row + q_heads[:, None] * stride_q_head + dims[None, :],
        mask=live[:, None],
        other=0.0,
    )  # [BLOCK_M, HEAD_DIM]
    if PAIRED_VALUES:
        queries = tl.minimum(tl.maximum(queries.to(tl.float32), -65504.0), 65504.0)
    queries = queries.to(OPERAND)
    k_head = k + kv_head * stride_k_head
    v_head = v + kv_head * stride_v_head
    row_slots = slots + row * stride_slot_row

    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if PAIRED_VALUES:
        acc_even = tl.zeros([BLOCK_M, HEAD_DIM // 2], tl.float32)
        acc_odd = tl.zeros([BLOCK_M, HEAD_DIM // 2], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(first, last, BLOCK_N):
        # Columns past the end repeat the last slot and lose their score, so no load
        # needs a mask and nothing but selected rows is ever read.
        col = start + cols
        slot = tl.load(row_slots + tl.minimum(col, last - 1)).to(tl.int64)
        keys = tl.load(k_head + slot[:, None] * stride_k_slot + dims[None, :])
        if PAIRED_VALUES:
            pairs = tl.load(v_head + slot[:, None] * stride_v_slot + halves[None, :])
        else:
            values = tl.load(v_head + slot[:, None] * stride_v_slot + dims[None, :])
        scores = tl.dot(queries, tl.trans(keys.to(OPERAND)))  # [BLOCK_M, BLOCK_N]
        scores = tl.where((col < last)[None, :], scores * scale_log2, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        weights = weights.to(OPERAND)
        if PAIRED_VALUES:
            even = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
            odd = ((pairs >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
            acc_even = tl.dot(weights, even.to(OPERAND), acc_even * shrink[:, None])
            acc_odd = tl.dot(weights, odd.to(OPERAND), acc_odd * shrink[:, None])
        else:
            acc = tl.dot(weights, values.to(OPERAND), acc * shrink[:, None])
        peak = new_peak

    if PAIRED_VALUES:
        acc = tl.interleave(acc_even, acc_odd)
    result = acc * tl.where(total > 0, v_scale / total, 0.0)[:, None]
    num_heads = tl.num_programs(1) * GROUP
    if SPLITS == 1:
        cell = row * num_heads + q_heads
        tl.store(
            out + cell[:, None] * HEAD_DIM + dims[None, :],
            result.to(out.dtype.element_ty),
            mask=live[:, None],
        )
    else:
        cell = (row * SPLITS + split) * num_heads + q_heads
        tl.store(
            partial + cell[:, None] * HEAD_DIM + dims[None, :],
            result,
            mask=live[:, None],
        )
        tl.store(lse + cell, peak + tl.log2(total), mask=live)


@triton.jit
def _combine(partial, lse, out, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    dims = tl.arange(0, HEAD_DIM)
    peak = -float("inf")
    for split in range(SPLITS):
        peak = tl.maximum(peak, tl.load(lse + (row * SPLITS + split) * num_heads + head))
    # An empty row has no finite peak; any finite stand-in keeps its weights zero.
    peak = tl.where(peak == -float("inf"), 0.0, peak)
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for split in range(SPLITS):
        cell = (row * SPLITS + split) * num_heads + head
        weight = tl.exp2(tl.load(lse + cell) - peak)
        total += weight
        acc += weight * tl.load(partial + cell * HEAD_DIM + dims)
    result = acc * tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(
        out + (row * num_heads + head) * HEAD_DIM + dims,
        result.to(out.dtype.element_ty),
    )
