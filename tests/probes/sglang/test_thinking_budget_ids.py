"""Probe of thinking-budget-ids: a budget holds in every vocabulary and on every row of a verify block."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.sampling.custom_logit_processor import (
    Qwen3ThinkingBudgetLogitProcessor,
    ThinkingBudgetLogitProcessor,
)

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp
from verify_paths import published  # noqa: F401  pytest finds the fixture by this name

START, END, NEW_LINE = 9, 10, 4


class Vocabulary:
    """A tokenizer of single tokens; any other text is two."""

    def __init__(self, **ids):
        self.ids = ids

    def encode(self, text, add_special_tokens=True):
        assert not add_special_tokens
        known = {"<think>": "start", "</think>": "end", "\n": "new_line"}[text]
        return [self.ids[known]] if known in self.ids else [1, 2]


def allowed(start, vocab_size, tokenizer=None, output=range(10, 20), budget=3):
    req = SimpleNamespace(origin_input_ids=[1, 2, start], output_ids=list(output), tokenizer=tokenizer)
    logits = Qwen3ThinkingBudgetLogitProcessor()(
        torch.zeros(1, vocab_size), [{"thinking_budget": budget, "__req__": req}]
    )
    return (logits[0] > float("-inf")).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("start", "end", "vocab_size"), [(151667, 151668, 151936), (248068, 248069, 248320)], ids=["qwen3", "qwen3.5"]
)
def test_only_a_new_line_and_then_the_end_may_follow_a_spent_budget(start, end, vocab_size):
    assert allowed(start, vocab_size) == [198]
    assert allowed(start, vocab_size, output=[*range(10, 20), 198]) == [end]
    assert len(allowed(start, vocab_size, budget=11)) == vocab_size
    assert len(allowed(start, vocab_size, output=[*range(10, 20), end, 5])) == vocab_size


def test_the_tokenizers_ids_win_over_the_size_of_the_vocabulary():
    tokenizer = Vocabulary(start=7, end=8, new_line=6)
    assert allowed(7, 248320, tokenizer) == [6]
    assert allowed(7, 248320, tokenizer, output=[*range(10, 20), 6]) == [8]
    assert len(allowed(248068, 248320, tokenizer)) == 248320


class Budget(ThinkingBudgetLogitProcessor):
    THINKING_START_TOKEN_ID = START
    THINKING_END_TOKEN_ID = END
    NEW_LINE_TOKEN_ID = NEW_LINE


# What follows the last committed token in each draft: the budget ends at its first, second or third token, or never.
DRAFTS = ([5, 6, NEW_LINE, END], [5, NEW_LINE, END, 7], [NEW_LINE, END, 5, 6], [END, START, 5, 6])


@pytest.mark.parametrize("path", ["eagle", "ngram", "dflash", "dspark"])
@pytest.mark.parametrize("budget", [0, 2, 3, 4, 50])
def test_each_row_of_a_block_counts_the_tokens_ahead_of_it(path, budget):
    rng = random.Random(budget)
    sampling = {"custom_params": {"thinking_budget": budget}}
    requests = [vp.Request([1, START], sampling, [], Budget.to_str()) for _ in DRAFTS]
    requests.append(vp.Request([1, START], {}, []))
    run = vp.PATHS[path](requests, vp.hashed_model(3))
    run.prefill([rng.choice([5, 6, NEW_LINE]) for _ in requests])
    chains = [[r.tokens[-1], *draft] for r, draft in zip(requests, (*DRAFTS, DRAFTS[0]), strict=True)]
    trees = [vp.random_tree(rng, tokens) if path == "ngram" else vp.chain(tokens) for tokens in chains]
    got = run.verify(trees)
    for b, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        for node in range(5):
            ahead = vp.Request(
                request.prompt, request.sampling, request.tokens + tree.path(node), request.custom_logit_processor
            )
            torch.testing.assert_close(got[b, node], vp.plain_distribution(ahead, run.model))


def admitted(processor, tokenizer):
    """The request as the scheduler admitted it."""
    from sglang.srt.sampling.custom_logit_processor import validate_custom_logit_processor

    return validate_custom_logit_processor(SimpleNamespace(custom_logit_processor=processor, tokenizer=tokenizer))


def test_a_request_that_no_budget_can_hold_is_refused_before_it_is_scheduled():
    budget = Qwen3ThinkingBudgetLogitProcessor.to_str()
    assert admitted(None, None) is None
    assert admitted(budget, None) is None
    assert admitted(budget, Vocabulary(start=7, end=8, new_line=6)) is None
    assert "</think>" in admitted(budget, Vocabulary(start=7, new_line=6))
    assert "cannot be loaded" in admitted(json.dumps({"callable": "00"}), None)
