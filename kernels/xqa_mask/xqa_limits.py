"""What XQA accepts of a speculative-decoding call, as checks with a message: its kernel makes none of its own.

Source: FlashInfer 0.7.2, `flashinfer/xqa.py`, `flashinfer/jit/xqa.py` and `data/csrc/xqa/mha.cu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

PAGE_SIZES = (16, 32, 64, 128)
KV_DTYPES = (torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.uint8)
MAJORS = (9, 10, 12)


@dataclass(frozen=True)
class XqaCall:
    """One call of XQA. `kv_lens` counts the drafts in; `kind` is that of the mask; uint8 KV means packed NVFP4."""

    capability: tuple[int, int]
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    out_dtype: torch.dtype
    head_dim: int
    num_q_heads: int
    num_kv_heads: int
    page_size: int
    q_lens: Sequence[int]
    kv_lens: Sequence[int]
    k_stride: Sequence[int]
    v_stride: Sequence[int]
    kind: str = "causal"
    window_left: int = -1


def check_xqa_call(call: XqaCall) -> None:
    """Raise ValueError, naming the first thing about the call that XQA cannot do or would silently get wrong."""
    spec_dec = max(call.q_lens, default=1) > 1
    group, rest = divmod(call.num_q_heads, call.num_kv_heads)
    rules = [
        (call.capability[0] in MAJORS, f"capability is {call.capability}, needs a major of {MAJORS}"),
        (call.q_dtype in (torch.float16, torch.bfloat16), f"q dtype is {call.q_dtype}, needs float16 or bfloat16"),
        (
            call.kv_dtype == call.q_dtype or call.kv_dtype in KV_DTYPES[2:],
            f"KV dtype is {call.kv_dtype}, needs {call.q_dtype}, int8, float8_e4m3fn or uint8 (NVFP4)",
        ),
        (
            call.kv_dtype != torch.uint8 or call.capability[0] == 12,
            f"NVFP4 KV needs capability 12.x, got {call.capability}",
        ),
        (
            call.out_dtype == call.q_dtype or (call.out_dtype == call.kv_dtype == torch.float8_e4m3fn),
            f"out dtype is {call.out_dtype}, needs {call.q_dtype}, or float8_e4m3fn when the KV is",
        ),
        (
            call.head_dim % 16 == 0 and 16 <= call.head_dim <= 512,
            f"head_dim is {call.head_dim}, needs a multiple of 16 in 16..512",
        ),
        (
            call.head_dim <= 256 or not spec_dec,
            f"head_dim is {call.head_dim} with {max(call.q_lens, default=1)} draft tokens, needs at most 256",
        ),
        (rest == 0, f"query heads are {call.num_q_heads}, needs a multiple of the {call.num_kv_heads} KV heads"),
        (
            call.head_dim <= 256 or group <= 16,
            f"head_dim is {call.head_dim} with {group} query heads a KV head, needs at most 16 beyond 256",
        ),
        (call.page_size in PAGE_SIZES, f"page_size is {call.page_size}, needs one of {PAGE_SIZES}"),
        (
            tuple(call.k_stride) == tuple(call.v_stride),
            f"V strides are {tuple(call.v_stride)}, needs K's {tuple(call.k_stride)}: only K's are read",
        ),
        (
            call.kind != "tree" or call.window_left < 0,
            f"window_left is {call.window_left} with a draft tree, needs -1: the window assumes a linear chain",
        ),
    ]
    for holds, message in rules:
        if not holds:
            raise ValueError(f"XQA: {message}")
    for request, (q_len, kv_len) in enumerate(zip(call.q_lens, call.kv_lens, strict=True)):
        if kv_len < q_len:
            raise ValueError(
                f"XQA: request {request} has {kv_len} KV tokens for {q_len} draft tokens, needs at least as many: "
                "the length includes the drafts and their difference is taken unsigned"
            )
