"""Compact verification, where requests verify different numbers of draft tokens, runs on XQA and stays causal."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import sys
from pathlib import Path

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

sys.path.insert(0, str(Path(__file__).parent))
from xqa_backend import Bench, PastTheEnd, attended

DRAFT_TOKENS = 8


def layout_of(lengths: list[int], tokens: int) -> RaggedVerifyLayout:
    return RaggedVerifyLayout.from_verify_lens(verify_lens_cpu=lengths, device=torch.device("cpu"), grid=[tokens])


def run(call, *args, **kwargs) -> torch.Tensor:
    try:
        return call(*args, **kwargs)
    except NotImplementedError as error:
        pytest.fail(f"compact verification is refused: {error}")
    except PastTheEnd as error:
        pytest.fail(f"the kernel reads past the mask: {error}")


def assert_causal(out: torch.Tensor, lengths: list[int]) -> None:
    row = 0
    for b, length in enumerate(lengths):
        for r in range(length):
            drafts = attended(out[row])
            assert drafts == list(range(r + 1)), f"request {b} row {r} attended {drafts}"
            row += 1


@pytest.mark.parametrize("lengths", [[3, 8, 1], [1, 1, 1], [8, 8], [5]], ids=str)
def test_an_eager_batch_is_causal(monkeypatch, lengths) -> None:
    bench = Bench(monkeypatch, draft_tokens=DRAFT_TOKENS)
    out = run(bench.eager, ForwardMode.TARGET_VERIFY, lengths, layout_of(lengths, sum(lengths)))
    assert_causal(out, lengths)
    # one mask row width, whatever the lengths: XQA takes it from the maximum, and captured graphs keep theirs
    assert [call["q_len"] for call in bench.kernel.calls] == [DRAFT_TOKENS]


@pytest.mark.parametrize(
    ("lengths", "slots", "tokens"),
    [([3, 8, 1], 3, 12), ([3, 8, 1], 5, 16), ([3, 8, 1], 3, 16), ([3, 8, 1], 3, 64), ([2, 2], 3, 64)],
    ids=["exact", "padding-rows", "last-row-padded", "last-row-wider-than-the-mask", "one-wide-padding-row"],
)
def test_a_padded_graph_replay_is_causal(monkeypatch, lengths, slots, tokens) -> None:
    bench = Bench(monkeypatch, draft_tokens=DRAFT_TOKENS, max_running=8)
    bench.backend.init_cuda_graph_state(8, 8 * DRAFT_TOKENS)
    padded = lengths + [0] * (slots - len(lengths))
    out = run(bench.captured, ForwardMode.TARGET_VERIFY, padded, layout_of(lengths, tokens), num_tokens=tokens)
    assert_causal(out, lengths)
    assert not out.isnan().any(), "rows that the kernel does not write are left unset"


def test_the_layers_of_a_replay_share_one_output_that_nobody_fills_again(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=DRAFT_TOKENS, max_running=8)
    bench.backend.init_cuda_graph_state(8, 8 * DRAFT_TOKENS)
    batch = bench.batch(ForwardMode.TARGET_VERIFY, [3, 8, 1], layout_of([3, 8, 1], 64), num_tokens=64)
    run(bench.backend.init_forward_metadata_out_graph, batch, in_capture=True)
    bench.backend.init_forward_metadata_in_graph(batch)
    made = []
    with monkeypatch.context() as patch:
        for name in ("zeros", "zeros_like", "full", "full_like"):
            make = getattr(torch, name)
            patch.setattr(torch, name, lambda *a, make=make, **k: made.append(make) or make(*a, **k))
        layers = [run(bench.forward, batch) for _ in range(2)]
    assert len({out.data_ptr() for out in layers}) == 1 and not layers[-1].isnan().any()
    made.pop(), made.pop()  # the queries that the bench makes
    assert not made, f"a layer fills its output: {made}"


def test_a_layer_with_wider_rows_than_the_model_has_an_output_of_its_own(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=DRAFT_TOKENS, max_running=8)
    bench.backend._xqa_out_columns = 1
    lengths = [3, 8, 1]
    assert_causal(run(bench.eager, ForwardMode.TARGET_VERIFY, lengths, layout_of(lengths, 12)), lengths)


def test_a_replay_with_other_lengths_refreshes_the_mask(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=DRAFT_TOKENS, max_running=8)
    bench.backend.init_cuda_graph_state(8, 64)
    for lengths in ([3, 8, 1], [8, 1, 3]):
        out = run(bench.captured, ForwardMode.TARGET_VERIFY, lengths, layout_of(lengths, 12), num_tokens=12)
        assert_causal(out, lengths)
    pointers = {call["mask"].data_ptr() for call in bench.kernel.calls}
    assert len(pointers) == 1, "a captured graph keeps reading the first mask"


def test_uniform_verification_still_runs_with_its_own_width(monkeypatch) -> None:
    bench = Bench(monkeypatch, draft_tokens=DRAFT_TOKENS)
    out = run(bench.eager, ForwardMode.TARGET_VERIFY, [DRAFT_TOKENS] * 2)
    assert_causal(out, [DRAFT_TOKENS] * 2)
