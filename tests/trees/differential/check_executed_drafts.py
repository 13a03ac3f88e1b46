"""Invariants of the draft counts over any mix of steps: widths, caps, batches, retraction."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.speculative.pp_spec_relay import PPSpecRelayInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.uno_worker_v2 import UnoWorkerV2
from spec_counts import Accounting, Step

NAMES = ["a", "b", "c"]
WIDTHS = st.integers(1, 8)


@pytest.fixture(autouse=True)
def config():
    with get_context().override_server_args(
        speculative_algorithm="EAGLE", speculative_num_steps=3, speculative_num_draft_tokens=4
    ):
        yield


@st.composite
def steps(draw, widths=WIDTHS):
    width = draw(widths)
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    mode = draw(st.sampled_from(["full", "capped", "compact"]))
    caps = None if mode == "full" else {name: draw(st.integers(1, width)) for name in names}
    accepted = {name: draw(st.integers(0, (width if caps is None else caps[name]) - 1)) for name in names}
    return Step(width, accepted, caps, compact=mode == "compact")


def executed(step: Step, name: str) -> int:
    """Draft rows of one request that the target ran in one step."""
    return (step.cap_lens[name] if step.compact else step.width) - 1


@given(run=st.lists(steps(), min_size=1, max_size=12), away=st.lists(st.sampled_from([*NAMES, None]), max_size=12))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_proposed_is_what_ran(run, away):
    accounting = Accounting(NAMES, SpeculativeAlgorithm.DSPARK)
    live = []
    for i, step in enumerate(run):
        # A retracted request may still be in the batch whose result arrives.
        retracted = away[i] if i < len(away) else None
        for name, req in accounting.reqs.items():
            req.is_retracted = name == retracted
        accounting.take(step)
        live.append([name for name in step.accepted if name != retracted])
    for name in NAMES:
        mine = [step for step, names in zip(run, live, strict=True) if name in names]
        proposed = sum(executed(step, name) for step in mine)
        accepted = sum(step.accepted[name] for step in mine)
        assert accepted <= proposed
        meta = accounting.summary(name)
        if proposed:
            assert meta["spec_num_proposed_drafts"] == proposed
            assert meta["spec_num_correct_drafts"] == accepted
            assert math.isclose(meta["spec_accept_rate"], accepted / proposed)
    ran = sum(executed(step, name) for step in run for name in step.accepted)
    accepted = sum(sum(step.accepted.values()) for step in run)
    assert accounting.logged_rate() == round(accepted / ran if ran else 0, 2)


@given(run=st.lists(steps(widths=st.just(4)).filter(lambda step: not step.compact), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fixed_width_gives_width_times_steps(run):
    accounting = Accounting(NAMES, SpeculativeAlgorithm.DSPARK)
    for step in run:
        accounting.take(step)
    for name, req in accounting.reqs.items():
        if req.spec_verify_ct:
            assert accounting.summary(name)["spec_num_proposed_drafts"] == req.spec_verify_ct * 3


def test_pipeline_stages_verify_the_start_up_width():
    """Every stage rebuilds the verify input from relayed rows, at the start-up width; the count is of those rows."""
    with get_context().override_server_args(
        speculative_algorithm="EAGLE", speculative_num_steps=3, speculative_num_draft_tokens=4, speculative_eagle_topk=1
    ):
        reqs = [SimpleNamespace(rid=name) for name in NAMES]
        lengths = torch.tensor([5, 7, 9])
        batch = SimpleNamespace(
            reqs=reqs,
            forward_mode=ForwardMode.DECODE,
            batch_size=lambda: len(reqs),
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            seq_lens_sum=21,
            spec_info=PPSpecRelayInput.degenerate(
                rids=NAMES,
                bonus_tokens=torch.tensor([1, 2, 3]),
                num_draft_tokens=get_spec().speculative_num_draft_tokens,
            ),
        )
        stage = object.__new__(Scheduler)
        stage.device = "cpu"
        stage.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=SimpleNamespace(verify_mask=None)))
        stage._pp_spec_rebuild_verify_input(batch)
        rows = batch.spec_info.draft_token.view(len(reqs), -1)

        relayed = {
            "next_token_ids": torch.zeros(rows.numel(), dtype=torch.int64),
            "spec_accept_lens": torch.tensor([1, 4, 2]),
            "spec_new_seq_lens": lengths + torch.tensor([1, 4, 2]),
        }
        outputs = PPOutputs(relayed)
        stage._pp_spec_relay = True
        stage.pp_group = SimpleNamespace(is_first_rank=False)
        stage._pp_spec_commit_relayed_accept = stage._pp_spec_adopt_relayed_tree = lambda *_: None
        batch.return_logprob = False
        forward = SimpleNamespace(fwd_batch=batch, verify_out_cache_loc=None, can_run_cuda_graph=False, fpm_timing=None)
        result = stage._pp_prep_batch_result(batch, forward, outputs)
    assert result.get_num_proposed_drafts(len(reqs), None) == [rows.shape[1] - 1] * len(reqs)


class PPOutputs(dict):
    """Tensors from the next pipeline stage."""

    @property
    def tensors(self) -> dict:
        return self


def test_unos_linear_block_counts_its_proposals():
    """F rows are verified, the clean root and F - 1 proposals; F + 2 - 1 tokens come out at most."""
    width = 5
    worker = object.__new__(UnoWorkerV2)
    worker.__dict__.update(
        tree_mode=False,
        forward_width=width,
        tail_width=width + 1,
        device="cpu",
        _tail_offsets=torch.arange(width + 1),
        model_runner=SimpleNamespace(
            req_to_token_pool=SimpleNamespace(req_to_token=torch.arange(64).view(2, 32)),
            model_config=SimpleNamespace(vocab_size=99),
        ),
    )
    verified = []

    def forward_batch(*, input_ids, **_):
        verified.append(input_ids.view(2, -1).shape[1])

    worker._make_forward_batch = forward_batch
    output = SimpleNamespace(
        logits_output=None, can_run_cuda_graph=False, routed_experts_output=None, indexer_topk_output=None
    )
    worker._run_draft_block = lambda *_, **__: (output, torch.zeros(2, width, dtype=torch.int64))
    worker._run_target_block = lambda *_, **__: (output, torch.zeros(2, width, dtype=torch.int64))
    batch = SimpleNamespace(
        seq_lens=torch.tensor([3, 4]),
        seq_lens_cpu=torch.tensor([3, 4]),
        req_pool_indices=torch.tensor([0, 1]),
        sampling_info=SimpleNamespace(is_all_greedy=True),
        spec_info=SimpleNamespace(
            bonus_tokens=torch.tensor([1, 2]), max_top_k=None, uniform_top_k_value=None, reserved_seq_lens_cpu=None
        ),
    )
    result: GenerationBatchResult = worker._forward_decode(batch, None)
    assert verified[-1] == width
    accepted = [length - result.num_non_draft_tokens_per_req for length in result.accept_lens.tolist()]
    assert accepted == [width - 1] * 2  # drafts and target all say 0: everything is accepted
    assert result.get_num_proposed_drafts(2, None) == [width - 1] * 2
