"""What a packed XQA mask means, and the attention it selects, in the plainest possible form.

Source: the XQA contract in FlashInfer 0.7.2 (`flashinfer/xqa.py`, `data/csrc/xqa/mha.cu`: applyMaskFromInput).
"""

from __future__ import annotations

import math

import torch


def words_per_row(q_len: int) -> int:
    """uint16 words of one mask row: rows are padded to 32 bits."""
    return 2 * math.ceil(q_len / 32)


def visible_drafts(kind: str, length: int) -> list[list[bool]]:
    """[length][length] table: may draft token i see draft token j?

    kind   "causal" (j <= i) or "full" (all).
    """
    table = [[False] * length for _ in range(length)]
    for i in range(length):
        for j in range(length):
            table[i][j] = kind == "full" or j <= i
    return table


def pack(tables: list[list[list[bool]]], q_len: int) -> torch.Tensor:
    """Mask rows [total_q, words_per_row(q_len)] uint16 of the requests' visibility tables, one after another."""
    rows = []
    for table in tables:
        for seen in table:
            row = [0] * words_per_row(q_len)
            for j, is_visible in enumerate(seen):
                if is_visible:
                    row[j // 16] |= 1 << (j % 16)
            rows.append(row)
    return torch.tensor(rows, dtype=torch.int32).reshape(len(rows), words_per_row(q_len)).to(torch.uint16)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    cu_seqlens: list[int],
    q_len: int,
    scale: float,
) -> torch.Tensor:
    """Attention as XQA computes it, reading the mask the way its kernel does: by flat row, without looking at shapes.

    q       [total_q, H, D] float64; request b owns rows cu_seqlens[b]..cu_seqlens[b+1]
    k, v    [B, S, H, D] float64; the last cu_seqlens[b+1] - cu_seqlens[b] of the S tokens are the drafts
    mask    uint16, of any shape; row r of request b starts at word (cu_seqlens[b] + r) * words_per_row(q_len)
    Returns [total_q, H, D] float64. A mask with fewer words than are read is an IndexError; the kernel would read on.
    """
    flat = [int(word) for word in mask.flatten().to(torch.int64)]
    out = torch.zeros(q.shape[0], v.shape[2], v.shape[3], dtype=torch.float64)
    for b in range(len(cu_seqlens) - 1):
        first, length = cu_seqlens[b], cu_seqlens[b + 1] - cu_seqlens[b]
        kv_len = k.shape[1]
        for r in range(length):
            row = (first + r) * words_per_row(q_len)
            seen = []
            for position in range(kv_len):
                draft = position - (kv_len - length)
                if draft < 0 or flat[row + draft // 16] >> (draft % 16) & 1:
                    seen.append(position)
            for h in range(q.shape[1]):
                scores = torch.stack([scale * torch.dot(q[first + r, h], k[b, position, h]) for position in seen])
                weights = torch.softmax(scores, dim=0)
                out[first + r, h] = sum(w * v[b, position, h] for w, position in zip(weights, seen, strict=True))
    return out
