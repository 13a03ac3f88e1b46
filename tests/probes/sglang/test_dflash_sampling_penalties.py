"""Probe of dflash-sampling-penalties: DFLASH and DSPARK verify with the penalties plain decoding applies."""

import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components import dp_attn
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.dspark_components import dspark_verify
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp
from verify_paths import published  # noqa: F401  pytest finds the fixture by this name


@pytest.mark.parametrize("path", ["dflash", "dspark"])
@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_every_row_of_the_block_is_penalized_as_if_decoded_alone(path, kind):
    run, rng = vp.admit(path, vp.PENALTIES[kind])
    for _ in range(4):
        trees = [vp.chain([r.tokens[-1], *(rng.choice([1, vp.EOS, 4]) for _ in range(4))]) for r in run.requests]
        got = run.verify(trees)
        vp.check_rows(run, trees, got)
        # Uneven accept lengths from one request to the next.
        run.commit([[*tree.path(rng.randrange(5)), rng.randrange(vp.VOCAB)] for tree in trees])


class Shift(CustomLogitProcessor):
    """Adds a ramp: of a penalty that looks at a logit's sign, it matters whether it comes before or after."""

    def __call__(self, logits, custom_param_list=None):
        return logits - 2.0 * torch.arange(logits.shape[-1], dtype=logits.dtype)


@pytest.mark.parametrize("path", ["dflash", "dspark"])
def test_a_custom_processor_sees_penalized_logits(path):
    sampling = {"repetition_penalty": 1.8, "custom_params": {}}
    run = vp.PATHS[path]([vp.Request([1, 5, 4], sampling, [], Shift.to_str())], vp.hashed_model(3))
    run.prefill([4])
    tree = vp.chain([4, 1, 4, 1])
    got = run.verify([tree])
    (request,) = run.requests
    for row in range(4):
        ahead = vp.Request(request.prompt, sampling, request.tokens + tree.path(row), request.custom_logit_processor)
        torch.testing.assert_close(got[0, row], vp.plain_distribution(ahead, run.model))


@pytest.mark.parametrize("path", ["dflash", "dspark"])
def test_a_merged_and_a_retracted_request_keep_their_counts(path):
    run, _rng = vp.admit(path, vp.PENALTIES["all"])
    for _ in range(2):
        trees = [vp.chain([r.tokens[-1], 1, 4, 1]) for r in run.requests]
        run.verify(trees)
        run.commit([tree.path(2) for tree in trees])
    retracted, req = run.requests[0], run.reqs[0]
    run.drop([0])
    back = vp.PATHS[path]([retracted], run.model, [req])
    before = list(retracted.tokens)
    logits = back.prefill()
    want = vp.plain_distribution(vp.Request(retracted.prompt, retracted.sampling, before), run.model)
    assert int(logits.argmax()) == int(want.argmax()), "the token sampled on return counts what was there before"
    run.merge(back)
    trees = [vp.chain([r.tokens[-1], 4, 1, 4]) for r in run.requests]
    got = run.verify(trees)
    vp.check_rows(run, trees, got)


@pytest.mark.parametrize("path", ["dflash", "dspark"])
@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_decode_rows_of_a_mixed_prefill_count_the_block_before_it(path, kind):
    """--enable-mixed-chunk: they decode one token in the prefill of others, after a verify that is still pending."""
    vp.check_mixed_prefill(path, vp.PENALTIES[kind], waits=kind != "none")


@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_the_paths_without_logits_are_taken_only_unpenalized(kind):
    run, _ = vp.admit("dflash", vp.PENALTIES[kind])
    with vp.forward_isolation(run.batch):
        info = run.batch.sampling_info
        info.is_all_greedy, info.logit_bias = True, None
        worker = SimpleNamespace(_selector_sample=None)
        run.batch.return_logprob = False
        skips = DFlashWorkerV2._can_skip_verify_logits(worker, run.batch, info)
        noop = dspark_verify.verify_logits_adjustments_are_noop(info)
    assert (skips, noop) == ((True, True) if kind == "none" else (False, False))


@pytest.mark.parametrize("kind", ["frequency", "none"])
@pytest.mark.parametrize("pending", [0, 1])
def test_a_penalized_step_waits_for_the_last_result(kind, pending):
    run, _ = vp.admit("dflash", vp.PENALTIES[kind])
    scheduler = SimpleNamespace(require_mlp_sync=False, result_queue=deque([None] * pending))
    waits = Scheduler.is_disable_overlap_for_batch(scheduler, run.batch, last_batch=run.batch)
    assert bool(waits) == (kind == "frequency" and pending == 1)


def overlap_decisions(locals_: list, monkeypatch) -> list[bool]:
    """What each of several data-parallel ranks decides, by upstream's exchange of their batches' facts."""
    rows: list[torch.Tensor] = []

    def exchange(global_flat, local_row, group):
        rows.append(local_row.clone())
        if len(rows) <= len(locals_):
            return
        global_flat.copy_(torch.cat(rows[: len(locals_)]))

    def idle():
        batch = ScheduleBatch(reqs=[])
        batch.forward_mode, batch.spec_algorithm = ForwardMode.IDLE, SpeculativeAlgorithm.DFLASH
        return batch

    monkeypatch.setattr(dp_attn, "exchange_sync_rows", exchange)
    tp_group = SimpleNamespace(cpu_group=None, active_ranks_cpu=torch.ones(len(locals_)))
    decisions = []
    with get_parallel().override(num_dp_ranks=len(locals_), attn_tp_size=1, attn_cp_size=1, tp_group=tp_group):
        for _ in range(2):  # once to learn what every rank says, once to hear it
            decisions = []
            for batch in locals_:
                batch = dp_attn.prepare_mlp_sync_batch_raw(
                    batch,
                    model_runner=SimpleNamespace(spec_algorithm=SpeculativeAlgorithm.DFLASH, model_config=None),
                    get_idle_batch=idle,
                    disable_cuda_graph=True,
                    require_mlp_tp_gather=True,
                    disable_overlap_schedule=False,
                    offload_tags=set(),
                )
                scheduler = SimpleNamespace(require_mlp_sync=True, result_queue=deque([None]))
                decisions.append(bool(Scheduler.is_disable_overlap_for_batch(scheduler, batch, last_batch=batch)))
    return decisions


@pytest.mark.parametrize("order", [1, -1])
def test_data_parallel_ranks_wait_together(order, monkeypatch):
    """A rank that waits alone would launch its collectives in another order than its peers."""
    penalized, _ = vp.admit("dflash", vp.PENALTIES["frequency"])
    plain, _ = vp.admit("dflash", vp.PENALTIES["none"])
    assert overlap_decisions([penalized.batch, plain.batch, None][::order], monkeypatch) == [True] * 3
    assert overlap_decisions([plain.batch, None][::order], monkeypatch) == [False] * 2
    assert overlap_decisions([mixed(penalized), plain.batch, None][::order], monkeypatch) == [True] * 3
    assert overlap_decisions([mixed(plain), None][::order], monkeypatch) == [False] * 2


def mixed(running: vp.Path) -> ScheduleBatch:
    """A mixed batch of one arriving request and the decode rows of `running`."""
    arriving = vp.PATHS["dflash"]([vp.Request([2, 6], {})], running.model)
    arriving.mix(running)
    batch = arriving.batch
    batch.extend_lens = [2, *(1 for _ in running.reqs)]
    batch.prefix_lens = [
        len(r.prompt) + len(r.tokens) - n for r, n in zip(arriving.requests, batch.extend_lens, strict=True)
    ]
    batch.extend_logprob_start_lens = [2, *(0 for _ in running.reqs)]
    batch.extend_num_tokens = sum(batch.extend_lens)
    return batch


@pytest.mark.parametrize("penalized", [True, False])
def test_compact_verify_builds_the_block_only_for_penalties(penalized, monkeypatch):
    """DSPARK's compact verify: the block of last committed token and drafts, and no needless copy of it."""
    strided = torch.zeros(6, vp.VOCAB)
    seen = {}
    monkeypatch.setattr(dspark_verify.BuildRaggedVerifyWindow, "execute", lambda **_: None)
    monkeypatch.setattr(dspark_verify.ScatterCompactToStrided, "execute", lambda **_: strided)
    monkeypatch.setattr(dspark_verify, "apply_logits_adjustments_strided", lambda **given: seen.update(given))
    output = SimpleNamespace(next_token_logits=strided, hidden_states=strided)
    executor = SimpleNamespace(
        verify_num_draft_tokens=3,
        model_runner=None,
        verify_epilogue=None,
        _run_ragged=lambda **_: SimpleNamespace(logits_output=output, can_run_cuda_graph=False),
    )
    dspark_verify.TargetVerifyExecutor.run_compact(
        executor,
        batch=None,
        layout=None,
        draft_block_ids=torch.tensor([[7, 0], [8, 0]]),
        draft_tokens=torch.tensor([[1, 2], [3, 4]]),
        bs=2,
        device="cpu",
        sampling_info=SimpleNamespace(verify_penalizers="some" if penalized else None),
        verify_window=SimpleNamespace(kv_loc_plan=None),
    )
    block = seen.get("draft_tokens")
    assert (None if block is None else block.tolist()) == ([[7, 1, 2], [8, 3, 4]] if penalized else None)
