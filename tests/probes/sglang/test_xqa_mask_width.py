"""Every request's draft tokens attend themselves and the earlier ones, whatever width and batch runs on XQA."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import sys
from pathlib import Path

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

sys.path.insert(0, str(Path(__file__).parent))
from xqa_backend import Bench, PastTheEnd, attended

CAUSAL = "request {} row {} attended {}"


def assert_causal(out: torch.Tensor, requests: int, q_len: int) -> None:
    for b in range(requests):
        for r in range(q_len):
            drafts = attended(out[b * q_len + r])
            assert drafts == list(range(r + 1)), CAUSAL.format(b, r, drafts)


def run(bench: Bench, form: str, mode: ForwardMode, lengths: list[int]) -> torch.Tensor:
    try:
        return getattr(bench, form)(mode, lengths)
    except PastTheEnd as error:
        pytest.fail(f"the kernel reads past the mask: {error}")


@pytest.mark.parametrize("form", ["eager", "captured"])
@pytest.mark.parametrize(
    ("draft_tokens", "q_len"),
    [(8, 8), (8, 7), (8, 2), (8, 10), (33, 32), (33, 33), (32, 33)],
    ids=lambda value: str(value),
)
def test_verify_of_another_width_than_the_draft_block_is_causal(monkeypatch, form, draft_tokens, q_len) -> None:
    bench = Bench(monkeypatch, draft_tokens=draft_tokens)
    bench.backend.init_cuda_graph_state(3, 3 * 64)
    out = run(bench, form, ForwardMode.TARGET_VERIFY, [q_len] * 3)
    assert_causal(out, 3, q_len)
    assert bench.kernel.calls[0]["mask"].shape == (3, q_len, (q_len + 31) // 32 * 2)


@pytest.mark.parametrize("form", ["eager", "captured"])
def test_draft_extend_of_another_width_is_causal(monkeypatch, form) -> None:
    bench = Bench(monkeypatch, draft_tokens=4)
    bench.backend.init_cuda_graph_state(3, 3 * 64)
    assert_causal(run(bench, form, ForwardMode.DRAFT_EXTEND_V2, [6, 6]), 2, 6)


def test_widths_may_alternate(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=8)
    for q_len in (8, 7, 8, 3, 7):
        assert_causal(run(bench, "eager", ForwardMode.TARGET_VERIFY, [q_len] * 2), 2, q_len)


def test_requests_sorted_into_groups_keep_their_masks(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=8, splits=2)
    assert_causal(run(bench, "eager", ForwardMode.TARGET_VERIFY, [7] * 4), 4, 7)
    assert len(bench.kernel.calls) == 2


def test_a_graph_padded_past_the_running_requests_has_a_mask_for_every_row(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=8, max_running=3)
    bench.backend.init_cuda_graph_state(8, 64)
    assert_causal(run(bench, "captured", ForwardMode.TARGET_VERIFY, [8] * 8), 8, 8)


def test_an_eager_batch_padded_for_data_parallel_attention_has_a_mask_for_every_row(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=8, max_running=3, eager_multiple=8)
    assert_causal(run(bench, "eager", ForwardMode.TARGET_VERIFY, [8] * 8), 8, 8)


def test_a_batch_beyond_capacity_is_an_error_and_not_a_read(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=8, max_running=3)
    with pytest.raises(ValueError, match="batch of 5 requests exceeds the capacity of 4"):
        run(bench, "eager", ForwardMode.TARGET_VERIFY, [8] * 5)


def test_single_token_verify_needs_no_mask(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=1)
    out = bench.eager(ForwardMode.TARGET_VERIFY, [1, 1])
    assert_causal(out, 2, 1)
    assert bench.kernel.calls[0]["mask"] is None
