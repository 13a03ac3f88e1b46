"""Probe of spec-sampling-penalties: EAGLE-family and NGRAM verify with the penalties plain decoding applies."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp
from verify_paths import published  # noqa: F401  pytest finds the fixture by this name


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("path", ["eagle", "ngram"])
@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_every_node_is_penalized_for_its_own_path(path, kind, seed):
    run, rng = vp.admit(path, vp.PENALTIES[kind], seed)
    for _ in range(4):
        drafts = [[r.tokens[-1], *(rng.choice([1, vp.EOS, 4]) for _ in range(6))] for r in run.requests]
        trees = [vp.random_tree(rng, tokens) if path == "ngram" else vp.chain(tokens) for tokens in drafts]
        got = run.verify(trees)
        vp.check_rows(run, trees, got)
        # Uneven accept lengths from one request to the next.
        run.commit([[*tree.path(rng.randrange(7)), rng.randrange(vp.VOCAB)] for tree in trees])


@pytest.mark.parametrize("path", ["eagle", "ngram"])
def test_a_retracted_request_comes_back_with_its_counts(path):
    run, _ = vp.admit(path, vp.PENALTIES["all"])
    run.commit([[1, 4, 1], [4, 4]])
    retracted, req = run.requests[0], run.reqs[0]
    run.drop([0])
    before = list(retracted.tokens)
    back = vp.PATHS[path]([retracted], run.model, [req])
    logits = back.prefill()
    want = vp.plain_distribution(vp.Request(retracted.prompt, retracted.sampling, before), run.model)
    assert int(logits.argmax()) == int(want.argmax())
    run.merge(back)
    trees = [vp.chain([r.tokens[-1], 4, 1]) for r in run.requests]
    got = run.verify(trees)
    vp.check_rows(run, trees, got)


@pytest.mark.parametrize("path", ["eagle"])
@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_decode_rows_of_a_mixed_prefill_count_the_block_before_it(path, kind):
    """--enable-mixed-chunk, which NGRAM lacks: one token in the prefill of others, after a verify still pending."""
    vp.check_mixed_prefill(path, vp.PENALTIES[kind])


@pytest.mark.parametrize("path", ["eagle", "ngram"])
@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_the_result_before_it_is_counted_on_the_device(path, kind):
    """A penalized step under the overlap schedule waits for nothing, and counts what is still on its way to the host."""
    vp.check_overlap(path, vp.PENALTIES[kind])
