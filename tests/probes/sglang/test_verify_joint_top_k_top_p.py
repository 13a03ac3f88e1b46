"""Probe of verify-joint-top-k-top-p: top-p looks at the whole distribution in verify, as it does in plain decoding."""

import math
import random
import sys
import weakref
from pathlib import Path

import pytest
import torch
from sglang.srt.speculative import uno_utils
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

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


@pytest.fixture
def uno(monkeypatch):
    """UNO's samplers, which record the distributions they are handed: `[bs, rows, VOCAB]` by name."""
    seen = {}

    def dense(ids: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*probs.shape[:2], vp.VOCAB).scatter_(2, ids.long(), probs)

    def sample(ids, probs):
        seen["sampled"] = dense(ids, probs)
        return ids[..., 0]

    def sample_dense(probs):
        seen["sampled"] = probs
        return probs.argmax(-1)

    def reject(candidates, target_ids, target_probs, *_):
        seen["target"] = dense(target_ids, target_probs)
        return torch.zeros(len(candidates), dtype=torch.int32), candidates[:, 0]

    # FlashInfer's top-k is a CUDA kernel; a batch wants the dense path when one of its requests has a wider top_k.
    monkeypatch.setattr(uno_utils, "_flashinfer_top_k", lambda logits, k, **_: torch.topk(logits, k))
    monkeypatch.setattr(uno_utils, "_SPARSE_TOP_K_LIMIT", 6)
    monkeypatch.setattr(uno_utils, "_sample_from_support", sample)
    monkeypatch.setattr(uno_utils, "_sample_from_dense_probs", sample_dense)
    monkeypatch.setattr(uno_utils, "_sparse_rejection_from_support", reject)
    return seen


COMPACT = [[], [{"top_k": 6}], [{"temperature": 0}], [{"top_k": 2, "top_p": 0.3}]]
WIDE = [[{"top_p": 0.9}], [{"top_k": 9}]]


@pytest.mark.parametrize("sampling", [{"top_k": 4, "top_p": 0.6, "temperature": 1.5}, {"top_k": 5}])
@pytest.mark.parametrize("neighbours", COMPACT + WIDE)
def test_uno_keeps_the_same_tokens_whoever_is_beside(uno, sampling, neighbours):
    """Up to a top_k of 128, UNO drafts and verifies from compact rows; one wider request makes the batch dense."""
    rows, model = 40, vp.hashed_model(7)
    requests = [vp.Request([1, b], s) for b, s in enumerate([sampling, *neighbours])]
    info = vp.to_batch([vp.to_req(r) for r in requests], SpeculativeAlgorithm.UNO).sampling_info
    ahead = [
        [vp.Request(r.prompt, r.sampling, [row // vp.VOCAB, row % vp.VOCAB]) for row in range(rows)] for r in requests
    ]
    logits = torch.stack([torch.stack([model(a.prompt + a.tokens) for a in of_request]) for of_request in ahead])
    want = torch.stack([torch.stack([vp.plain_distribution(a, model) for a in of_request]) for of_request in ahead])

    widest = {"max_top_k": min(int(info.top_ks.max()), vp.VOCAB)}
    candidates, draft = uno_utils.sample_uno_candidates(draft_logits=logits, sampling_info=info, **widest)
    torch.testing.assert_close(uno["sampled"], want)
    assert (draft.token_ids is None) == (neighbours in WIDE)
    if neighbours in WIDE:
        return  # verify builds the dense distribution as drafting does, and trees are in EAGLE's sampler
    flat = logits.flatten(0, 1)
    uno_utils.run_uno_sampling(
        candidates=candidates,
        next_token_logits=flat,
        sampling_info=info,
        committed_frontiers=torch.zeros(len(requests), dtype=torch.int64),
        draft_distribution=draft,
        **widest,
    )
    torch.testing.assert_close(uno["target"], want)
    uno["sampled"] = None
    uno_utils.sample_uno_tree_target_tokens(
        next_token_logits=flat, sampling_info=info, batch_size=len(requests), verify_width=rows, **widest
    )
    torch.testing.assert_close(uno["sampled"], want)


@pytest.mark.parametrize("path", ["eagle", "dflash"])
def test_no_third_distribution_is_kept(path, monkeypatch):
    """A verify of [bs * D, vocab] probabilities has room for two of them: the filters' input and one result."""
    made, kept = [], []
    renorm_top_k, renorm_top_p = vp.renorm_top_k, vp.renorm_top_p

    def top_k(probs, top_ks):
        result = renorm_top_k(probs, top_ks)
        made.append(weakref.ref(result))
        return result

    def top_p(probs, top_ps):
        kept.extend(one for one in made if one() is not None)
        return renorm_top_p(probs, top_ps)

    monkeypatch.setattr(vp, "renorm_top_k", top_k)
    monkeypatch.setattr(vp, "renorm_top_p", top_p)
    run = vp.PATHS[path]([vp.Request([1, 2], s) for s in WHOLE], vp.hashed_model(5))
    run.prefill([3, 4, 5])
    made.clear()
    kept.clear()
    run.verify([vp.chain([r.tokens[-1], 1, 2]) for r in run.requests])
    assert made and not kept


@pytest.mark.parametrize("sampling", [{"top_k": 4}, {"top_k": 4, "top_p": 0.6}])
def test_one_compiled_graph_serves_every_batch_of_uno(sampling, monkeypatch):
    """Whether a request has top_p or none, the compiled function is given tensors; without top_p none drops a token."""
    given = []
    monkeypatch.setattr(
        uno_utils, "_build_sparse_target_support_tensors", lambda *arguments: given.append(arguments) or (None, None)
    )
    info = vp.to_batch([vp.to_req(vp.Request([1], sampling))], SpeculativeAlgorithm.UNO).sampling_info
    uno_utils._build_sparse_target_support(
        next_token_logits=torch.zeros(1, vp.VOCAB),
        sampling_info=info,
        batch_size=1,
        forward_width=1,
        max_top_k=4,
    )
    ((_, _, _, top_ps, *_),) = given
    assert top_ps.tolist() == pytest.approx([sampling.get("top_p", math.inf)])
