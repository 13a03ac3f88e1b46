"""Causal draft-block masks of compact batches for FlashInfer's XQA kernel.

XQA reads its mask through a raw pointer as flat rows, one per query token of the
batch, each padded to 32 bits. Bit ``j`` of a row says whether the token may attend
draft token ``j`` of its own request; the KV prefix is always visible. Nothing in the
kernel checks that the rows have the width and the number that the batch needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.kernels.jit.utils import cache_once, load_jit

if TYPE_CHECKING:
    from tvm_ffi.module import Module


def xqa_mask_width(q_len: int) -> int:
    """uint16 words in the mask row of one token, for draft blocks of up to ``q_len``."""
    return (q_len + 31) // 32 * 2


def fill_xqa_mask(mask: torch.Tensor, cu_seqlens: torch.Tensor, q_len: int) -> None:
    """Fill ``mask`` in place, without allocating or waiting for the device.

    Args:
        mask: ``[total_q, xqa_mask_width(q_len)]``, contiguous uint16.
        cu_seqlens: ``[batch + 1]`` int32 offsets of the requests' rows. Rows past the
            last offset become zero.
        q_len: the largest number of draft tokens of a request, 1 to 128.
    """
    _jit_module().xqa_mask_fill(mask, cu_seqlens, q_len)


@cache_once
def _jit_module() -> Module:
    return load_jit(
        "xqa_mask",
        cuda_files=["attention/xqa_mask_launch.cuh"],
        cuda_wrappers=[("xqa_mask_fill", "xqa_mask_fill")],
    )
