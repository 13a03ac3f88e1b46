"""Exact top-k of ragged score rows: any number of ties, smallest index first, no candidate buffer to overflow.

Radix selection: four passes over the row narrow the 32-bit key of the k-th largest score eight bits at a time, a
fifth collects everything above it and the first of those equal to it. Rows of any length; the result ascends.
"""

import torch
import triton
import triton.language as tl

_BINS = 256


def block_topk(
    scores: torch.Tensor,
    row_starts: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
) -> torch.Tensor:
    """Indices, relative to the row's start, of its ``topk`` largest scores: [rows, topk] int32, -1 behind short rows.

    scores      [rows, width] float32, last axis contiguous; only ``[start, start + length)`` of a row is read
    row_starts  [rows] int32
    lengths     [rows] int32; a row that fits is the identity and its scores are not read
    """
    rows = scores.shape[0]
    out = torch.empty((rows, topk), dtype=torch.int32, device=scores.device)
    if rows:
        _block_topk[(rows,)](
            scores=scores,
            row_starts=row_starts,
            lengths=lengths,
            out=out,
            topk=topk,
            stride_row=scores.stride(0),
            OUT_BLOCK=triton.next_power_of_2(topk),
            BINS=_BINS,
            BLOCK=4096,
            num_warps=16,
        )
    return out


@triton.jit
def _sort_keys(scores, cols, length):
    """Scores as int32 whose signed order is the order of the floats."""
    bits = tl.load(scores + cols, mask=cols < length, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _block_topk(
    scores,
    row_starts,
    lengths,
    out,
    topk,
    stride_row,
    OUT_BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    row_scores = scores + row * stride_row + tl.load(row_starts + row)
    row_out = out + row * topk
    if length <= topk:
        slot = tl.arange(0, OUT_BLOCK)
        tl.store(row_out + slot, tl.where(slot < length, slot, -1), mask=slot < topk)
        return

    offsets = tl.arange(0, BLOCK)
    bins = tl.arange(0, BINS)
    # prefix: the leading bits of the wanted key so far, as a signed number.
    prefix = 0
    wanted = topk
    for step in tl.static_range(4):
        shift = 24 - 8 * step
        histogram = tl.zeros([BINS], tl.int32)
        for start in range(0, length, BLOCK):
            cols = start + offsets
            key = _sort_keys(row_scores, cols, length)
            member = cols < length
            if step == 0:
                bucket = (key >> 24) + 128
            else:
                member = member & ((key >> (shift + 8)) == prefix)
                bucket = (key >> shift) & 0xFF
            histogram += tl.histogram(bucket, BINS, mask=member)
        at_least = tl.cumsum(histogram, 0, reverse=True)
        digit = tl.sum((at_least >= wanted).to(tl.int32), 0) - 1
        wanted -= tl.sum(tl.where(bins > digit, histogram, 0), 0)
        prefix = digit - 128 if step == 0 else (prefix << 8) | digit

    # `prefix` is the k-th largest key; `wanted` of those equal to it belong to the result.
    taken = 0
    ties = 0
    for start in range(0, length, BLOCK):
        cols = start + offsets
        key = _sort_keys(row_scores, cols, length)
        tied = (cols < length) & (key == prefix)
        tie_rank = ties + tl.cumsum(tied.to(tl.int32), 0)
        take = ((cols < length) & (key > prefix)) | (tied & (tie_rank <= wanted))
        rank = taken + tl.cumsum(take.to(tl.int32), 0)
        tl.store(row_out + rank - 1, cols, mask=take)
        taken += tl.sum(take.to(tl.int32), 0)
        ties += tl.sum(tied.to(tl.int32), 0)
