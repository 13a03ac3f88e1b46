"""Probe of positive-k-invariant: with the switch on, a verify of another width than the chosen one raises."""

import os
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_worker_common

CHOSEN = 4
BATCH = 2


class Reached(Exception):
    """Verification got past its target forward."""


def eagle_verify(
    *, rows=BATCH * CHOSEN, drafts=BATCH * CHOSEN, tree=CHOSEN, graph=CHOSEN, replayed=True, graph_runner=None
):
    """Run upstream's verify up to sampling; raise Reached there."""
    output = SimpleNamespace(
        logits_output=SimpleNamespace(next_token_logits=torch.zeros(rows, 5)), can_run_cuda_graph=replayed
    )
    runner = SimpleNamespace(
        decode_cuda_graph_runner=graph_runner or SimpleNamespace(captured_req_width=graph, bs=BATCH),
        watermark_state=None,
    )
    target = SimpleNamespace(model_runner=runner, forward_batch_generation=lambda **_: output)
    batch = SimpleNamespace(
        seq_lens=torch.ones(BATCH),
        spec_info=SimpleNamespace(
            draft_token_num=CHOSEN,
            draft_token=torch.zeros(drafts, dtype=torch.int64),
            retrieve_next_token=torch.zeros(BATCH, tree, dtype=torch.int64),
        ),
        input_ids=None,
        out_cache_loc=None,
        has_grammar=False,
        forward_mode=ForwardMode.DECODE,
    )
    stand_ins = {
        "record_stream_for_v2_verify": lambda *_: None,
        "record_stream_each": lambda *_: None,
        "eagle_prepare_for_verify": lambda *_: (SimpleNamespace(), replayed),
        "maybe_detect_nan": mock.Mock(side_effect=Reached),
    }
    with mock.patch.multiple(eagle_worker_common, **stand_ins):
        eagle_worker_common.run_eagle_verify(
            batch,
            target_worker=target,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=None,
            plan_stream=None,
            plan_stream_ctx=nullcontext(),
            topk=1,
            num_draft_tokens=CHOSEN,
            device="cpu",
            metadata_ready_pre_pad=False,
            finalize_tree_path=False,
        )


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.setitem(os.environ, "SGLANG_SPEC_CHECK_VERIFY_WIDTH", "1")


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"graph": 8}, "replayed graph: 8"),
        ({"rows": BATCH * 3}, "target rows: 3"),
        ({"drafts": BATCH * 2}, "draft tokens: 2"),
        ({"tree": 5}, "tree and mask: 5"),
    ],
    ids=["graph", "rows", "drafts", "tree"],
)
def test_another_width_is_refused(switched_on, fault, named):
    try:
        eagle_verify(**fault)
    except Reached:
        pytest.fail("verified another width than the chosen one")
    except RuntimeError as error:
        assert "to be 4 rows per request" in str(error) and named in str(error)


def test_the_chosen_width_passes(switched_on):
    with pytest.raises(Reached):
        eagle_verify()


def test_an_eager_verify_has_no_graph_to_compare(switched_on):
    with pytest.raises(Reached):
        eagle_verify(graph=8, replayed=False)


def test_off_by_default():
    assert "SGLANG_SPEC_CHECK_VERIFY_WIDTH" not in os.environ
    switch = getattr(envs, "SGLANG_SPEC_CHECK_VERIFY_WIDTH", None)
    assert switch is not None, "the release has no such check"
    with pytest.raises(Reached):
        eagle_verify(graph=8)


def test_off_it_asks_nothing_of_the_graph_runner():
    """A platform's own graph runner need not know a width while nobody compares it."""
    with pytest.raises(Reached):
        eagle_verify(graph_runner=SimpleNamespace(bs=BATCH))
