"""The straightforward Triton kernel for the same job: the yardstick of the static instruction counts.

One program a query row and KV head, keys loaded transposed for the first product, masked loads at unselected columns,
FP8 converted to the query's bf16. Correct, and written the way one writes it first.
"""

import triton
import triton.language as tl


@triton.jit
def naive_sparse_gqa(
    q,
    k,
    v,
    slots,
    out,
    scale,
    width,
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
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    heads = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    live = (heads < GROUP)[:, None]
    q_heads = kv_head * GROUP + heads
    queries = tl.load(
        q + row * stride_q_row + q_heads[:, None] * stride_q_head + dims[None, :],
        mask=live,
        other=0.0,
    )
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, width, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        slot = tl.load(slots + row * stride_slot_row + cols, mask=cols < width, other=-1).to(tl.int64)
        valid = slot >= 0
        keys = tl.load(
            k + kv_head * stride_k_head + slot[None, :] * stride_k_slot + dims[:, None], mask=valid[None, :], other=0.0
        )
        values = tl.load(
            v + kv_head * stride_v_head + slot[:, None] * stride_v_slot + dims[None, :], mask=valid[:, None], other=0.0
        )
        scores = tl.dot(queries, keys.to(q.dtype.element_ty)) * scale
        scores = tl.where(valid[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype.element_ty), values.to(q.dtype.element_ty), acc * shrink[:, None])
        peak = new_peak
    tl.store(
        out + row * stride_q_row + q_heads[:, None] * stride_q_head + dims[None, :],
        (acc / total[:, None]).to(out.dtype.element_ty),
        mask=live,
    )
