"""Greedy decoding with penalties says the same with speculation as without, whatever joins or leaves the batch."""

import random

import pytest
import verify_paths as vp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LENGTH = 14
WIDTH = 5

penalties = st.fixed_dictionaries(
    {"temperature": st.just(0)},
    optional={
        "frequency_penalty": st.sampled_from([-1.5, 0.4, 2.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.7, 2.0]),
        "repetition_penalty": st.sampled_from([0.6, 1.3, 2.0]),
        "min_new_tokens": st.integers(1, LENGTH),
        "logit_bias": st.just({str(vp.EOS): 2.0}),
    },
)


@st.composite
def scenarios(draw):
    requests = draw(st.lists(penalties, min_size=1, max_size=3))
    return {
        "sampling": requests,
        "arrivals": [0, *(draw(st.integers(0, 3)) for _ in requests[1:])],
        "seed": draw(st.integers(0, 2**16)),
        "agreement": draw(st.sampled_from([0.0, 0.6, 1.0])),
        "retract_at": draw(st.one_of(st.none(), st.integers(1, 4))),
    }


def draft(rng: random.Random, request: vp.Request, model: vp.Model, agreement: float) -> vp.Tree:
    """A chain that agrees with the unpenalized model about as often as asked."""
    tokens = [request.tokens[-1]]
    while len(tokens) < WIDTH:
        likely = int(model(request.prompt + request.tokens + tokens[1:]).argmax())
        tokens.append(likely if rng.random() < agreement else rng.randrange(vp.VOCAB))
    return vp.chain(tokens)


def speculative_greedy(path: type[vp.Path], scenario: dict) -> list[vp.Request]:
    """Serve a scenario's requests through one verify path: late arrivals merge, one may be retracted and return."""
    rng = random.Random(scenario["seed"])
    model = vp.hashed_model(scenario["seed"])
    requests = [vp.Request([rng.randrange(vp.VOCAB) for _ in range(3)], s) for s in scenario["sampling"]]
    waiting = [(step, request, None) for step, request in zip(scenario["arrivals"], requests, strict=True)]
    running = None
    for step in range(200):
        admitted = [(request, req) for at, request, req in waiting if at <= step]
        waiting = [entry for entry in waiting if entry[0] > step]
        for request, req in admitted:
            new = path([request], model, None if req is None else [req])
            new.prefill()
            if running is None or not running.reqs:
                running = new
            else:
                running.merge(new)
        finished = [i for i, request in enumerate(running.requests) if vp.is_finished(request, LENGTH)]
        if finished:
            running.drop(finished)
        if step == scenario["retract_at"] and len(running.reqs) > 1:
            waiting.append((step + 1, running.requests[0], running.reqs[0]))
            running.drop([0])
        if running.reqs:
            trees = [draft(rng, request, model, scenario["agreement"]) for request in running.requests]
            runs = vp.accept_greedy(trees, running.verify(trees))
            running.commit([vp.cut(r, run, LENGTH) for r, run in zip(running.requests, runs, strict=True)])
        elif not waiting:
            return requests
    raise AssertionError("the scenario did not end")


@pytest.fixture(autouse=True)
def config():
    with vp.published_config():
        yield


@pytest.mark.parametrize("path", vp.PATHS)
@given(scenario=scenarios())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_speculative_equals_plain(path, scenario):
    served = speculative_greedy(vp.PATHS[path], scenario)
    for request in served:
        want = vp.plain_greedy(request, vp.hashed_model(scenario["seed"]), LENGTH)
        assert request.tokens == want, f"{request.sampling} gave {request.tokens}, plain decoding {want}"


class ForgetsDrafts(vp.DFlash):
    """Penalizes every row for the committed tokens only."""

    def adjust(self, trees, logits, info):
        return super().adjust([vp.chain([t.tokens[0]] * len(t.tokens)) for t in trees], logits, info)


class CountsOneCommit(vp.DFlash):
    """Feeds the last token of every step and no more."""

    def prepare(self):
        for req in self.reqs:
            req.num_penalized_output_tokens = max(req.num_penalized_output_tokens, len(req.output_ids) - 1)


@pytest.mark.parametrize("wrong", [ForgetsDrafts, CountsOneCommit], ids=lambda cls: cls.__name__)
def test_a_wrong_count_is_caught(wrong):
    """The mutation twins of the test above: the same comparison must reject them."""
    differs = 0
    for seed in range(12):
        scenario = {
            "sampling": [{"temperature": 0, "frequency_penalty": 2.0, "repetition_penalty": 1.3}],
            "arrivals": [0],
            "seed": seed,
            "agreement": 1.0,
            "retract_at": None,
        }
        (request,) = speculative_greedy(wrong, scenario)
        differs += request.tokens != vp.plain_greedy(request, vp.hashed_model(seed), LENGTH)
    assert differs >= 3, "the comparison cannot tell this fault"
