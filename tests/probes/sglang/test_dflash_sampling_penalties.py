"""Probe of dflash-sampling-penalties: DFLASH and DSPARK verify with the penalties plain decoding applies."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.dspark_components import dspark_verify

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
    vp.check_mixed_prefill(path, vp.PENALTIES[kind])


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


@pytest.mark.parametrize("path", ["dflash", "dspark"])
@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_the_result_before_it_is_counted_on_the_device(path, kind):
    """A penalized step under the overlap schedule waits for nothing, and counts what is still on its way to the host."""
    vp.check_overlap(path, vp.PENALTIES[kind])


def test_what_the_middle_chunk_of_a_prompt_samples_is_not_counted():
    run, _ = vp.admit("dflash", [{"frequency_penalty": 1.0}])
    run.launch([[4, 1]])
    run.requests[0].tokens = run.requests[0].tokens[:1]
    run.reqs[0].inflight_middle_chunks = 1
    trees = [vp.chain([run.requests[0].tokens[-1], 1, 4])]
    vp.check_rows(run, trees, run.verify(trees))


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
