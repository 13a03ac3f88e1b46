"""Probe of verify-min-p: every verify path filters by min_p, after top-k and top-p, request by request."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.speculative.dspark_components.dspark_verify import _blockwise_rejection_applies
from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp
from verify_paths import published  # noqa: F401  pytest finds the fixture by this name

MIX = [{"min_p": 0.4}, {"min_p": 0.05, "temperature": 2.0}, {}]
WITH_TOP_K = [{"min_p": 0.2, "top_k": 6}, {"min_p": 0.5, "top_k": 3}, {"top_k": 4}]
WITH_GREEDY = [{"min_p": 0.9}, {"temperature": 0, "min_p": 0.3}]


def admit(path, sampling, seed=0):
    rng = random.Random(seed)
    run = vp.PATHS[path]([vp.Request([1, 2, rng.randrange(vp.VOCAB)], s) for s in sampling], vp.hashed_model(seed))
    run.prefill([rng.randrange(vp.VOCAB) for _ in sampling])
    return run, rng


@pytest.mark.parametrize("path", ["eagle", "ngram", "dflash", "dspark"])
@pytest.mark.parametrize("sampling", [MIX, WITH_TOP_K, WITH_GREEDY], ids=["alone", "with_top_k", "with_greedy"])
def test_verify_drops_what_plain_decoding_drops(path, sampling):
    run, rng = admit(path, sampling)
    trees = [vp.chain([r.tokens[-1], *(rng.randrange(vp.VOCAB) for _ in range(4))]) for r in run.requests]
    got = run.verify(trees)
    for b, (request, tree) in enumerate(zip(run.requests, trees, strict=True)):
        for row in range(5):
            ahead = vp.Request(request.prompt, request.sampling, request.tokens + tree.path(row))
            torch.testing.assert_close(got[b, row], vp.plain_distribution(ahead, run.model))


@pytest.mark.parametrize("sampling", [MIX, [{}, {}]], ids=["min_p", "none"])
def test_dsparks_unfiltered_shortcuts_are_left_to_unfiltered_batches(sampling):
    info = admit("dspark", sampling)[0].batch.sampling_info.copy_for_forward()
    info.verify_penalizers = None
    unfiltered = sampling == [{}, {}]
    assert (
        _blockwise_rejection_applies(sampling_info=info, rejection_noise=object(), block_verification=False)
        == unfiltered
    )
    worker = SimpleNamespace(_sampling_accept_graph=object(), _verify_planner=SimpleNamespace(mode_value="static"))
    eligible = DSparkWorkerV2._sampling_graph_eligible(
        worker,
        batch=SimpleNamespace(has_grammar=False),
        proposal_folded=True,
        sampling_info=info,
        simulate_bonus_sampling_info=None,
    )
    assert eligible == unfiltered
