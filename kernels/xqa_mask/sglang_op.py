"""Draft-block masks for FlashInfer's XQA speculative-decoding kernel.

XQA reads its mask through a raw pointer as flat rows, one per query token of the
batch, each padded to 32 bits. Bit ``j`` of a row says whether the token may attend
draft token ``j`` of its own request; the KV prefix is always visible. Nothing in the
kernel checks that the rows have the width and the number that the batch needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import torch

from sglang.kernels.jit.utils import cache_once, load_jit

if TYPE_CHECKING:
    from tvm_ffi.module import Module


def xqa_mask_width(q_len: int) -> int:
    """uint16 words in the mask row of one token, for draft blocks of up to ``q_len``."""
    return (q_len + 31) // 32 * 2


def fill_xqa_mask(
    mask: torch.Tensor,
    q_len: int,
    cu_seqlens: Optional[torch.Tensor] = None,
    full: bool = False,
) -> torch.Tensor:
    """Fill ``mask`` in place, without allocating or waiting for the device.

    Args:
        mask: ``[batch, q_len, width]`` or, with ``cu_seqlens``, ``[total_q, width]``;
            contiguous uint16, ``width = xqa_mask_width(q_len)``.
        q_len: draft tokens per request, or the largest number of them.
        cu_seqlens: ``[batch + 1]`` int32 offsets of the requests' rows. Rows past the
            last offset become zero.
        full: every draft token sees the whole block instead of itself and the
            earlier ones.
    """
    if mask.dtype != torch.uint16 or mask.shape[-1] != xqa_mask_width(q_len):
        raise ValueError(
            f"mask: got {mask.dtype} {tuple(mask.shape)}, needs torch.uint16 rows of "
            f"{xqa_mask_width(q_len)} words for q_len={q_len}"
        )
    if not mask.is_contiguous():
        raise ValueError(
            f"mask: shape {tuple(mask.shape)} has stride {mask.stride()}, "
            "needs to be contiguous"
        )
    rows = mask.view(-1, mask.shape[-1])
    if mask.is_cuda:
        _jit_module().xqa_mask_fill(rows, cu_seqlens, q_len, full)
    else:
        rows.copy_(_mask_rows(rows, q_len, cu_seqlens, full))
    return mask


@cache_once
def _jit_module() -> Module:
    return load_jit(
        "xqa_mask",
        cuda_files=["attention/xqa_mask_launch.cuh"],
        cuda_wrappers=[("xqa_mask_fill", "xqa_mask_fill")],
    )


def _mask_rows(
    rows: torch.Tensor, q_len: int, cu_seqlens: Optional[torch.Tensor], full: bool
) -> torch.Tensor:
    """The same rows by torch operations, for devices without the CUDA kernel."""
    row = torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
    if cu_seqlens is None:
        index, length = row % q_len, torch.full_like(row, q_len)
        owned = index < q_len
    else:
        # a sentinel request of no rows owns what lies past the last offset
        offsets = torch.cat([cu_seqlens, cu_seqlens[-1:]])
        request = torch.searchsorted(cu_seqlens[1:], row, right=True)
        index = row - offsets[request]
        length = (offsets[request + 1] - offsets[request]).clamp(max=q_len)
        owned = (index >= 0) & (index < length)
    visible = torch.where(owned, length if full else index + 1, 0)
    word = torch.arange(rows.shape[1], dtype=torch.int32, device=rows.device)
    bits = (visible[:, None] - 16 * word[None, :]).clamp(0, 16)
    return ((1 << bits) - 1).to(torch.uint16)
