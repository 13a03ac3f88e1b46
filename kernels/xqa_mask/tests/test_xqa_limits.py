"""Every limit of the XQA contract that a caller can break is refused by name, and nothing else is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sm120.kernels.xqa_mask.xqa_limits import XqaCall, check_xqa_call

GOOD = XqaCall(
    capability=(12, 0),
    q_dtype=torch.bfloat16,
    kv_dtype=torch.float8_e4m3fn,
    out_dtype=torch.bfloat16,
    head_dim=256,
    num_q_heads=24,
    num_kv_heads=4,
    page_size=64,
    q_lens=[8, 3, 0],
    kv_lens=[100, 3, 5],
    k_stride=(65536, 256, 16384, 1),
    v_stride=(65536, 256, 16384, 1),
)

BROKEN = {
    "capability": ({"capability": (8, 9)}, r"capability is \(8, 9\), needs a major of"),
    "fp8 query": ({"q_dtype": torch.float8_e4m3fn}, "q dtype is torch.float8_e4m3fn, needs float16 or bfloat16"),
    "mixed kv": ({"kv_dtype": torch.float16}, "KV dtype is torch.float16, needs torch.bfloat16"),
    "e5m2 kv": ({"kv_dtype": torch.float8_e5m2}, "KV dtype is torch.float8_e5m2"),
    "nvfp4 off sm12x": (
        {"kv_dtype": torch.uint8, "capability": (9, 0)},
        r"NVFP4 KV needs capability 12.x, got \(9, 0\)",
    ),
    "out": ({"out_dtype": torch.float32}, "out dtype is torch.float32"),
    "fp8 out of bf16 kv": (
        {"out_dtype": torch.float8_e4m3fn, "kv_dtype": torch.bfloat16},
        "out dtype is torch.float8_e4m3fn, needs torch.bfloat16",
    ),
    "odd head": ({"head_dim": 100}, "head_dim is 100, needs a multiple of 16 in 16..512"),
    "huge head": ({"head_dim": 528}, "head_dim is 528"),
    "large head with drafts": ({"head_dim": 512}, "head_dim is 512 with 8 draft tokens, needs at most 256"),
    "large head, large group": (
        {"head_dim": 512, "q_lens": [1, 1, 1], "num_q_heads": 128},
        "head_dim is 512 with 32 query heads a KV head",
    ),
    "group": ({"num_q_heads": 25}, "query heads are 25, needs a multiple of the 4"),
    "page": ({"page_size": 48}, "page_size is 48, needs one of"),
    "strides": ({"v_stride": (1, 2, 3, 4)}, r"V strides are \(1, 2, 3, 4\), needs K's"),
    "windowed tree": ({"kind": "tree", "window_left": 127}, "window_left is 127 with a draft tree, needs -1"),
    "short sequence": ({"kv_lens": [7, 3, 5]}, "request 0 has 7 KV tokens for 8 draft tokens"),
}


@pytest.mark.parametrize(("change", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_limit_is_named(change: dict, says: str) -> None:
    check_xqa_call(GOOD)
    with pytest.raises(ValueError, match="^XQA: " + says):
        check_xqa_call(dataclasses.replace(GOOD, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"kv_dtype": torch.uint8},
        {"kv_dtype": torch.bfloat16},
        {"out_dtype": torch.float8_e4m3fn},
        {"kind": "tree"},
        {"window_left": 127},
        {"head_dim": 512, "q_lens": [1, 1, 1]},
        {"capability": (12, 1)},
        {"q_lens": [128, 1, 0], "kv_lens": [128, 1, 0]},
    ],
    ids=str,
)
def test_what_xqa_does_take_is_let_through(change: dict) -> None:
    check_xqa_call(dataclasses.replace(GOOD, **change))
