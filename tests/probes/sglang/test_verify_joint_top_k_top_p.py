"""Probe of verify-joint-top-k-top-p: top-p looks at the whole distribution in verify, as it does in plain decoding."""

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp
from verify_paths import published  # noqa: F401  pytest finds the fixture by this name

# The widest top_k decides whether DFLASH gathers the top-k first or filters the whole vocabulary.
GATHERED = [{"top_k": 4, "top_p": 0.6}, {"top_k": 6, "top_p": 0.5}, {"top_k": 3}]
WHOLE = [{"top_k": 4, "top_p": 0.6}, {"top_p": 0.9}, {"temperature": 0}]
UNIFORM = [{"top_k": 5, "top_p": 0.7, "temperature": 2.0}] * 2


@pytest.mark.parametrize("path", ["eagle", "ngram", "dflash", "dspark"])
@pytest.mark.parametrize("sampling", [GATHERED, WHOLE, UNIFORM], ids=["gathered", "whole", "uniform"])
def test_verify_keeps_what_plain_decoding_keeps(path, sampling):
    rng = random.Random(5)
    run = vp.PATHS[path]([vp.Request([1, 2, rng.randrange(vp.VOCAB)], s) for s in sampling], vp.hashed_model(5))
    run.prefill([rng.randrange(vp.VOCAB) for _ in sampling])
    trees = [vp.chain([r.tokens[-1], *(rng.randrange(vp.VOCAB) for _ in range(6))]) for r in run.requests]
    got = run.verify(trees)
    for b, (request, tree) in enumerate(zip(run.requests, trees, strict=True)):
        for row in range(7):
            ahead = vp.Request(request.prompt, request.sampling, request.tokens + tree.path(row))
            torch.testing.assert_close(got[b, row], vp.plain_distribution(ahead, run.model))


def test_an_example_by_hand():
    """0.5, 0.2, 0.15, 0.15 with top_k 2 and top_p 0.7: both of the two most probable tokens stay; renormalizing first
    gives the best one 0.71 and drops the other."""

    def model(history):
        return torch.cat([torch.tensor([0.5, 0.2, 0.15, 0.15]).log(), torch.full((vp.VOCAB - 4,), -60.0)])

    for path in vp.PATHS.values():
        run = path([vp.Request([1], {"top_k": 2, "top_p": 0.7})], model)
        run.prefill([4])
        got = run.verify([vp.chain([4, 0])])[0, 0]
        torch.testing.assert_close(got[:3], torch.tensor([5 / 7, 2 / 7, 0.0]))
