"""Probe of verify-custom-logit-processor: EAGLE-family and NGRAM verify run the requests' own logit processors."""

import random
import sys
from pathlib import Path

import pytest
import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor, DisallowedTokensLogitsProcessor

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp
from verify_paths import published  # noqa: F401  pytest finds the fixture by this name

GREEDY = {"temperature": 0}
FORBID = {"custom_params": {"token_ids": [2, 5, 7]}}


class Shift(CustomLogitProcessor):
    """Adds a ramp scaled by the request's own parameter; a row given another request's is found out."""

    def __call__(self, logits, custom_param_list=None):
        ramp = torch.arange(logits.shape[-1], dtype=logits.dtype)
        scale = torch.tensor([param["scale"] for param in custom_param_list], dtype=logits.dtype)
        return logits + scale[:, None] * ramp


BATCHES = {
    "same for all": [(FORBID, DisallowedTokensLogitsProcessor)] * 3,
    "own parameters": [({"custom_params": {"scale": s}}, Shift) for s in (0.5, -0.25, 2.0)],
    "one of three": [({}, None), ({**GREEDY, **FORBID}, DisallowedTokensLogitsProcessor), ({"top_k": 3}, None)],
    "all greedy": [({**GREEDY, **FORBID}, DisallowedTokensLogitsProcessor), (GREEDY, None)],
    "with a bias": [({**FORBID, "logit_bias": {"5": 90.0}}, DisallowedTokensLogitsProcessor), ({}, None)],
}


@pytest.mark.parametrize("path", ["eagle", "ngram", "dflash", "dspark"])
@pytest.mark.parametrize("name", BATCHES)
def test_verify_runs_the_processor_of_each_request(path, name):
    rng = random.Random(3)
    requests = [
        vp.Request([rng.randrange(vp.VOCAB) for _ in range(3)], sampling, [], cls and cls.to_str())
        for sampling, cls in BATCHES[name]
    ]
    run = vp.PATHS[path](requests, vp.hashed_model(3))
    run.prefill([rng.randrange(vp.VOCAB) for _ in requests])
    drafts = [[r.tokens[-1], *(rng.randrange(vp.VOCAB) for _ in range(4))] for r in requests]
    trees = [vp.random_tree(rng, tokens) if path == "ngram" else vp.chain(tokens) for tokens in drafts]
    got = run.verify(trees)
    for b, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        for node in range(5):
            ahead = vp.Request(
                request.prompt, request.sampling, request.tokens + tree.path(node), request.custom_logit_processor
            )
            torch.testing.assert_close(got[b, node], vp.plain_distribution(ahead, run.model))


class BringBack(CustomLogitProcessor):
    """Makes one token likely, whatever the grammar has said about it."""

    def __call__(self, logits, custom_param_list=None):
        logits = logits.clone()
        logits[:, [param["token"] for param in custom_param_list]] = 60.0
        return logits


@pytest.mark.parametrize("path", ["eagle", "ngram"])
def test_a_processor_runs_after_the_grammar(path):
    """As in plain decoding: what the grammar has taken away, a processor may bring back."""
    letters = vp.LETTERS
    sampling = {"regex": f"[{letters[1]}{letters[4]}]*", "custom_params": {"token": 6}}
    requests = [vp.Request([2, 3], sampling, [], BringBack.to_str()), vp.Request([3], {}, [])]
    run = vp.PATHS[path](requests, vp.hashed_model(3))
    run.prefill([1, 1])
    trees = [vp.chain([1, 4, 1, 4]), vp.chain([1, 5, 6, 0])]
    got = run.verify(trees)
    for b, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        for node in range(4):
            ahead = vp.Request(
                request.prompt, request.sampling, request.tokens + tree.path(node), request.custom_logit_processor
            )
            want = vp.plain_distribution(ahead, run.model)
            torch.testing.assert_close(got[b, node], want)
            assert b or want[6] > 0.9
