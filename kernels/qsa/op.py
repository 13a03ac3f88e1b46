"""Checked entry points of the QSA kernels, registered as torch ops `sm120::qsa_attention` and `sm120::qsa_block_topk`.

On a device the exact capability must be listed in kernel.toml; on the CPU they run in Triton's interpreter only.
"""

from __future__ import annotations

import functools
import os
import tomllib
from pathlib import Path

import torch

from sm120.kernels._lib import capability
from sm120.kernels._lib.contracts import Shapes, check_int, check_tensor
from sm120.kernels.qsa import triton_block_topk, triton_sparse_gqa

HEAD_DIMS = (128, 256)
MAX_GROUP = 16
INDEX_DTYPES = (torch.int32, torch.int64)
# Triton holds a whole row of indices in one tile; this is the largest that it takes.
MAX_WIDTH = 2**20


def attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    indices: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    table_rows: torch.Tensor,
    scale: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    splits: int = 0,
) -> torch.Tensor:
    """Sparse grouped-query attention over a paged KV pool, [R, HQ, D] in q's dtype; prefill, decode and verify alike.

    q           [R, HQ, D], D 128 or 256, last axis contiguous; bf16, fp16 or fp32
    k_pool      [slots, HK, D], HQ / HK 1..16, in q's dtype or float8_e4m3fn (holding x / scale); v_pool the same
    indices     [R, N] int32 token positions of the row's request, N up to 2^20, any order; -1, and anything not below
                the row's length, is skipped wherever it stands; a row without tokens gives zeros
    lengths     [R] int32 or int64, tokens of the row's request
    table       [requests, tokens] int32, pool slot of every token
    table_rows  [R] int32 or int64, the row's line in `table`
    splits      programs sharing one row; 0 chooses from R (then results may differ in rounding with the batch)

    Slots are multiplied in 64 bits. That `table` names slots inside the pool is checked on the CPU only: on a device
    it would stall the stream. Raises ValueError naming the tensor. Source: SGLang 0.5.23, `srt/layers/attention/qsa`.
    """
    shapes = Shapes()
    check_tensor("q", q, dtype=(torch.bfloat16, torch.float16, torch.float32), shape=("R", "HQ", "D"), shapes=shapes)
    if shapes["D"] not in HEAD_DIMS:
        raise ValueError(f"q: head dim is {shapes['D']}, needs one of {HEAD_DIMS}")
    pool_dtypes = (q.dtype, torch.float8_e4m3fn)
    check_tensor(
        "k_pool",
        k_pool,
        dtype=pool_dtypes,
        shape=("S", "HK", "D"),
        stride=(None, None, 1),
        shapes=shapes,
        device=q.device,
        align=16,
    )
    check_tensor(
        "v_pool",
        v_pool,
        dtype=k_pool.dtype,
        shape=("S", "HK", "D"),
        stride=(None, None, 1),
        shapes=shapes,
        device=q.device,
        align=16,
    )
    check_tensor("q", q, stride=(None, None, 1))
    check_tensor(
        "indices", indices, dtype=torch.int32, shape=("R", "N"), stride=(None, 1), shapes=shapes, device=q.device
    )
    check_int("indices width", shapes["N"], 0, MAX_WIDTH)
    check_tensor("lengths", lengths, dtype=INDEX_DTYPES, shape=("R",), stride=(1,), shapes=shapes, device=q.device)
    check_tensor("table", table, dtype=torch.int32, shape=(None, None), stride=(None, 1), device=q.device)
    check_tensor(
        "table_rows", table_rows, dtype=INDEX_DTYPES, shape=("R",), stride=(1,), shapes=shapes, device=q.device
    )
    if shapes["HK"] == 0 or shapes["HQ"] % shapes["HK"] or not 1 <= shapes["HQ"] // shapes["HK"] <= MAX_GROUP:
        raise ValueError(f"q: {shapes['HQ']} heads over {shapes['HK']} KV heads, needs a whole group of 1..{MAX_GROUP}")
    for name, value in (("k_scale", k_scale), ("v_scale", v_scale)):
        if not 0.0 < value < float("inf"):
            raise ValueError(f"{name}: got {value}, needs a positive finite number")
        if k_pool.dtype != torch.float8_e4m3fn and value != 1.0:
            raise ValueError(f"{name}: got {value}, needs 1.0 for a pool of {k_pool.dtype}")
    check_int("splits", splits, 0, 64)
    _require_implementation(q.device)
    if q.device.type == "cpu" and shapes["R"]:
        _check_slots(indices, lengths, table, table_rows, shapes["S"])
    if splits == 0:
        splits = triton_sparse_gqa.choose_splits(shapes["R"], shapes["HK"], shapes["N"], capability.SMS)
    return torch.ops.sm120.qsa_attention(
        q, k_pool, v_pool, indices, lengths, table, table_rows, scale, k_scale, v_scale, splits
    )


def block_topk(scores: torch.Tensor, row_starts: torch.Tensor, lengths: torch.Tensor, topk: int) -> torch.Tensor:
    """Exact top-k of every row, [R, topk] int32 ascending indices relative to the row's start, -1 behind short rows.

    scores [R, W] fp32, last axis contiguous; row_starts and lengths [R] int32. Any number of ties; the smallest
    indices win at the threshold. -0.0 ranks below 0.0; scores must not be NaN. Only the row's own range is read.
    """
    shapes = Shapes()
    check_tensor("scores", scores, dtype=torch.float32, shape=("R", "W"), stride=(None, 1), shapes=shapes)
    for name, tensor in (("row_starts", row_starts), ("lengths", lengths)):
        check_tensor(name, tensor, dtype=torch.int32, shape=("R",), stride=(1,), shapes=shapes, device=scores.device)
    check_int("topk", topk, 1, 4096)
    _require_implementation(scores.device)
    if scores.device.type == "cpu" and shapes["R"]:
        outside = (row_starts < 0) | (lengths < 0) | (row_starts.long() + lengths.long() > shapes["W"])
        if outside.any():
            row = int(outside.nonzero()[0])
            raise ValueError(
                f"lengths: row {row} is [{int(row_starts[row])}, +{int(lengths[row])}), "
                f"needs to lie in 0..{shapes['W']}"
            )
    return torch.ops.sm120.qsa_block_topk(scores, row_starts, lengths, topk)


@torch.library.custom_op("sm120::qsa_attention", mutates_args=())
def _attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    indices: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    table_rows: torch.Tensor,
    scale: float,
    k_scale: float,
    v_scale: float,
    splits: int,
) -> torch.Tensor:
    if indices.shape[1] == 0:  # a tile of no columns does not exist
        return torch.zeros_like(q, memory_format=torch.contiguous_format)
    selected = triton_sparse_gqa.select_slots(indices, lengths, table, table_rows)
    return triton_sparse_gqa.sparse_gqa(q, k_pool, v_pool, selected, scale, k_scale, v_scale, splits)


@_attention.register_fake
def _(q, k_pool, v_pool, indices, lengths, table, table_rows, scale, k_scale, v_scale, splits):
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@torch.library.custom_op("sm120::qsa_block_topk", mutates_args=())
def _block_topk(scores: torch.Tensor, row_starts: torch.Tensor, lengths: torch.Tensor, topk: int) -> torch.Tensor:
    return triton_block_topk.block_topk(scores, row_starts, lengths, topk)


@_block_topk.register_fake
def _(scores, row_starts, lengths, topk):
    return scores.new_empty((scores.shape[0], topk), dtype=torch.int32)


def _require_implementation(device: torch.device) -> None:
    if device.type == "cuda":
        capability.require(torch.cuda.get_device_capability(device), "qsa", _capabilities())
    elif device.type != "cpu" or os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"device: got {device}, needs cuda, or cpu with TRITON_INTERPRET=1 set before the import")


@functools.cache
def _capabilities() -> list[tuple[int, int]]:
    listed = tomllib.loads((Path(__file__).parent / "kernel.toml").read_text())["capabilities"]
    return [tuple(pair) for pair in listed]


def _check_slots(
    indices: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, table_rows: torch.Tensor, slots: int
) -> None:
    valid = (indices >= 0) & (indices < lengths[:, None])
    if (indices[valid] >= table.shape[1]).any():
        raise ValueError(f"indices: largest is {int(indices[valid].max())}, needs to be below {table.shape[1]} (table)")
    if ((table_rows < 0) | (table_rows >= table.shape[0])).any():
        raise ValueError(f"table_rows: {table_rows.tolist()}, needs 0..{table.shape[0] - 1}")
    used = table[table_rows.long()[:, None].expand_as(indices)[valid], indices[valid].long()]
    if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < slots:
        raise ValueError(f"table: selects slots {int(used.min())}..{int(used.max())}, needs 0..{slots - 1} (k_pool)")
