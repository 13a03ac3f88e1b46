"""A bidirectional draft block is verified in one XQA launch that reads each request's KV once."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import sys
from pathlib import Path

import pytest
import torch
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode

sys.path.insert(0, str(Path(__file__).parent))
from xqa_backend import PREFIX, Bench, attended

ENCODER = {"attn_type": AttentionType.ENCODER_ONLY}


def assert_full(out: torch.Tensor, requests: int, q_len: int) -> None:
    for row in range(requests * q_len):
        assert attended(out[row]) == list(range(q_len)), f"row {row} attended {attended(out[row])}"


def make(monkeypatch, **options) -> Bench:
    bench = Bench(monkeypatch, **{"draft_tokens": 8, "encoder_windows": [-1, -1], **options})
    bench.backend.init_cuda_graph_state(3, 3 * 64)
    return bench


@pytest.mark.parametrize("form", ["eager", "captured"])
@pytest.mark.parametrize("q_len", [8, 7, 33])
def test_one_launch_attends_the_whole_block(monkeypatch, form, q_len) -> None:
    bench = make(monkeypatch, draft_tokens=max(q_len, 8))
    out = getattr(bench, form)(ForwardMode.TARGET_VERIFY, [q_len] * 3, **ENCODER)
    assert_full(out, 3, q_len)
    (call,) = bench.kernel.calls
    assert call["kv_tokens"] == 3 * (PREFIX + q_len), f"{call['kv_tokens']} KV tokens are read for 3 requests"


@pytest.mark.parametrize("form", ["eager", "captured"])
def test_causal_layers_beside_them_stay_causal(monkeypatch, form) -> None:
    bench = make(monkeypatch)
    out = getattr(bench, form)(ForwardMode.TARGET_VERIFY, [8, 8])
    assert [attended(row) for row in out] == [list(range(r + 1)) for r in range(8)] * 2


@pytest.mark.parametrize("form", ["eager", "captured"])
@pytest.mark.parametrize("options", [{"encoder_windows": [-1, 64]}, {"exact_sm120": False}], ids=["window", "sm121"])
def test_elsewhere_each_token_is_still_its_own_request(monkeypatch, form, options) -> None:
    bench = make(monkeypatch, **options)
    out = getattr(bench, form)(ForwardMode.TARGET_VERIFY, [8, 8], **ENCODER)
    assert_full(out, 2, 8)
    assert [call["q_len"] for call in bench.kernel.calls] == [1]


def test_draft_extend_keeps_its_causal_mask(monkeypatch) -> None:
    bench = make(monkeypatch)
    out = bench.captured(ForwardMode.DRAFT_EXTEND_V2, [8, 8], **ENCODER)
    assert [attended(row) for row in out] == [list(range(r + 1)) for r in range(8)] * 2


def test_a_block_of_one_needs_no_mask(monkeypatch) -> None:
    bench = make(monkeypatch, draft_tokens=1)
    assert_full(bench.eager(ForwardMode.TARGET_VERIFY, [1, 1], **ENCODER), 2, 1)
