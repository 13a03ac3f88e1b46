"""Every sampling parameter on every verify path samples from, and reports, what plain decoding would."""

import random
from typing import NamedTuple

import pytest
from verify_paths import (
    EOS,
    PATHS,
    VOCAB,
    Request,
    allows,
    chain,
    hashed_model,
    plain_distribution,
    plain_logprobs,
    published_config,
    random_tree,
)

GREEDY = {"temperature": 0}
FORBID = [2, 5, 7]
# Of the tokens that are drafted, b fits everywhere, e and f in every other place, EOS nowhere.
PAIRS = "([bce][abf-m]){99}"
TRIPLES = "([be]{2}[abcf]){66}"


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
    "grammar": [{**GREEDY, "regex": PAIRS}, {"regex": TRIPLES}, {}],
    "grammar, penalties, bias": [
        {**GREEDY, "regex": PAIRS, "frequency_penalty": 1.5, "repetition_penalty": 1.3},
        {"regex": TRIPLES, "presence_penalty": -1.0, "logit_bias": {"1": 3.0, "0": 9.0}, "top_k": 2},
        {"regex": PAIRS, "min_p": 0.2, "temperature": 2.0},
    ],
}


class Difference(NamedTuple):
    """Largest differences from plain decoding: of a probability to sample, and of a log-probability to report."""

    probability: float
    logprob: float


def scenario(kind: str, path: str, seed: int) -> Difference:
    """Compare a path's rows with plain decoding over a run of uneven commits."""
    rng = random.Random(seed)
    model = hashed_model(seed)
    processor = forbid_processor() if kind == "custom_logit_processor" else None
    requests = [Request([rng.randrange(VOCAB) for _ in range(4)], sampling, [], processor) for sampling in KINDS[kind]]
    run = PATHS[path](requests, model)
    run.prefill([legal_token(rng, request, []) for request in requests])
    probability = logprob = 0.0
    for _ in range(4):
        # Few distinct drafts, so that a token is drafted twice within a block.
        drafts = [[r.tokens[-1], *(rng.choice([1, EOS, 4, 5]) for _ in range(4))] for r in requests]
        trees = [random_tree(rng, tokens) if path == "ngram" else chain(tokens) for tokens in drafts]
        # No grammar lets a verify come to the nodes behind a token that it forbids.
        reachable = [
            [node for node in range(len(tree.tokens)) if allows(request, tree.path(node))]
            for request, tree in zip(requests, trees, strict=True)
        ]
        taken = [rng.choice(nodes) for nodes in reachable]
        got = run.verify(trees, taken)
        for b, (request, tree) in enumerate(zip(requests, trees, strict=True)):

            def ahead(node: int, request: Request = request, tree=tree) -> Request:
                tokens = request.tokens + tree.path(node)
                return Request(request.prompt, request.sampling, tokens, request.custom_logit_processor)

            for node in reachable[b]:
                want = plain_distribution(ahead(node), model)
                probability = max(probability, (got[b, node] - want).abs().max().item())
            for node, reported in zip(tree.nodes(taken[b]), run.logprobs[b], strict=True):
                want = plain_logprobs(ahead(node), model)
                # A forbidden token is as good as forbidden at exp(-50).
                logprob = max(logprob, (reported.clamp(min=-50) - want.clamp(min=-50)).abs().max().item())
        run.commit(
            [
                [*tree.path(node), legal_token(rng, request, tree.path(node))]
                for request, tree, node in zip(requests, trees, taken, strict=True)
            ]
        )
    return Difference(probability, logprob)


def legal_token(rng: random.Random, request: Request, path: list[int]) -> int:
    """Any token that the request's grammar lets follow `path`."""
    return rng.choice([token for token in range(VOCAB) if allows(request, [*path, token])])


def worst(kind: str, path: str) -> Difference:
    """The worst of three scenarios."""
    found = [scenario(kind, path, seed) for seed in range(3)]
    return Difference(max(one.probability for one in found), max(one.logprob for one in found))


@pytest.fixture(autouse=True)
def config():
    with published_config():
        yield


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_verify_samples_from_the_plain_distribution(kind, path):
    difference = worst(kind, path)
    assert difference.probability < 1e-5, (
        f"{kind} on {path}: distributions differ by up to {difference.probability:.3f}"
    )
    assert difference.logprob < 1e-3, f"{kind} on {path}: log-probabilities differ by up to {difference.logprob:.3f}"


class MasksTheRootOnly(PATHS["dflash"]):
    """Constrains the first row of a block and leaves the rest free."""

    def grammar_tree(self, trees):
        return super().grammar_tree([chain([tree.tokens[0], *[VOCAB] * (len(tree.tokens) - 1)]) for tree in trees])


class ReportsTheModel(PATHS["dflash"]):
    """Reports log-probabilities of the model's own logits, before any parameter."""

    def reported_logprobs(self, trees, logits, taken):
        return super().reported_logprobs(trees, self.logits(trees), taken)


@pytest.mark.parametrize(
    ("wrong", "kind", "field"),
    [(MasksTheRootOnly, "grammar", "probability"), (ReportsTheModel, "frequency_penalty", "logprob")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_path_is_caught(wrong, kind, field, monkeypatch):
    """The mutation twins of the test above: the same comparison must reject them."""
    monkeypatch.setitem(PATHS, "wrong", wrong)
    assert getattr(worst(kind, "wrong"), field) > 0.05
