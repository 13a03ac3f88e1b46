"""Every sampling parameter on every verify path samples from what plain decoding would sample from."""

import random

import pytest
from verify_paths import (
    EOS,
    PATHS,
    VOCAB,
    Request,
    chain,
    hashed_model,
    plain_distribution,
    published_config,
    random_tree,
)

GREEDY = {"temperature": 0}
FORBID = [2, 5, 7]


def forbid_processor() -> str:
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    return DisallowedTokensLogitsProcessor.to_str()


KINDS: dict[str, list[dict]] = {
    # One dict per request of the batch: parameters vary within it.
    "greedy": [GREEDY] * 3,
    "temperature": [{"temperature": 0.5}, {"temperature": 1.0}, {"temperature": 3.0}],
    "temperature, one greedy": [{"temperature": 0.5}, GREEDY, {"temperature": 3.0}],
    "top_k": [{"top_k": 2}, {"top_k": 5}, {}],
    "top_p": [{"top_p": 0.3}, {"top_p": 0.8}, {}],
    "top_k and top_p": [{"top_k": 4, "top_p": 0.6}, {"top_k": 6, "top_p": 0.5}, {"top_p": 0.9}],
    "min_p": [{"min_p": 0.4}, {"min_p": 0.05}, {}],
    "min_p and top_k": [{"min_p": 0.2, "top_k": 6}, {"min_p": 0.5, "top_k": 3}, {"top_k": 4}],
    "logit_bias": [{"logit_bias": {"4": 50.0}}, {**GREEDY, "logit_bias": {"5": -50.0}}, {}],
    "frequency_penalty": [{**GREEDY, "frequency_penalty": 1.5}, {"frequency_penalty": -2.0}, {}],
    "presence_penalty": [{**GREEDY, "presence_penalty": 2.0}, {"presence_penalty": -1.0}, {}],
    "repetition_penalty": [{**GREEDY, "repetition_penalty": 1.8}, {"repetition_penalty": 0.6}, {}],
    "min_new_tokens": [{**GREEDY, "min_new_tokens": 7}, {"min_new_tokens": 12}, {"min_new_tokens": 4}],
    "all penalties": [
        {**GREEDY, "frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.3, "min_new_tokens": 9},
        {"frequency_penalty": 1.1, "repetition_penalty": 0.7, "logit_bias": {"3": 4.0}},
        {"presence_penalty": -0.5, "min_new_tokens": 5, "top_k": 5},
    ],
    "custom_logit_processor": [{"custom_params": {"token_ids": FORBID}}] * 3,
}


def scenario(kind: str, path: str, seed: int) -> float:
    """Worst distance between the path's and plain decoding's distributions over a run of uneven commits."""
    rng = random.Random(seed)
    model = hashed_model(seed)
    processor = forbid_processor() if kind == "custom_logit_processor" else None
    requests = [Request([rng.randrange(VOCAB) for _ in range(4)], sampling, [], processor) for sampling in KINDS[kind]]
    run = PATHS[path](requests, model)
    run.prefill([rng.randrange(VOCAB) for _ in requests])
    worst = 0.0
    for _ in range(4):
        # Few distinct drafts, so that a token is drafted twice within a block.
        drafts = [[r.tokens[-1], *(rng.choice([1, EOS, 4, 5]) for _ in range(4))] for r in requests]
        trees = [random_tree(rng, tokens) if path == "ngram" else chain(tokens) for tokens in drafts]
        got = run.verify(trees)
        for b, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            for node in range(len(tree.tokens)):
                ahead = Request(
                    request.prompt, request.sampling, request.tokens + tree.path(node), request.custom_logit_processor
                )
                want = plain_distribution(ahead, model)
                worst = max(worst, (got[b, node] - want).abs().max().item())
        run.commit([[*tree.path(rng.randrange(5)), rng.randrange(VOCAB)] for tree in trees])
    return worst


@pytest.fixture(autouse=True)
def config():
    with published_config():
        yield


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_verify_samples_from_the_plain_distribution(kind, path):
    worst = max(scenario(kind, path, seed) for seed in range(3))
    assert worst < 1e-5, f"{kind} on {path}: distributions differ by up to {worst:.3f}"
