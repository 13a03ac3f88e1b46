"""Plans that are cut to what an endpoint takes: what changes, what stays, and that it is said."""

import json
import re
from dataclasses import replace

import pytest

from sm120.integration.measure.qualify import qualify
from sm120.integration.measure.requests import PLANS, Limits, Plan, fit
from sm120.integration.measure.result import Conditions

FULL = PLANS["full"]


# A vocabulary of bytes and a tiny pool, as the proof's model has.
TINY = Limits(8192, 16_384, 1.0)


def test_what_fits_stays_as_it_is():
    large = Limits(524_288, 824_384, 4.5)
    cut, notes = fit(FULL, large, trace_answer=200)
    assert notes == [] and cut == replace(FULL, needles=(295_000, 2_200_000, cut.needles[-1]))
    # The longest needle leaves room for its question and answer, and is longer than the others.
    assert 2_200_000 < cut.needles[-1] < 524_288 * 4.5
    assert fit(FULL, Limits(None, None, 4.5)) == (FULL, [])
    quick = PLANS["quick"]
    assert fit(quick, TINY, trace_answer=64) == (quick, [])


def test_everything_fits_a_tiny_endpoint_afterwards():
    cut, notes = fit(FULL, TINY, trace_answer=64)
    assert len(cut.prefill) == 3 and cut.prefill == tuple(sorted(cut.prefill)) and max(cut.prefill) < 8192
    assert cut.restore < 8192 and max(cut.needles) + 200 + 16 < 8192
    assert cut.effort_tokens == 1024 and cut.decode_tokens == 512
    # Four streams at once share the pool.
    assert 4 * (cut.decode_context + cut.decode_tokens) < 16_384 and 4 * (cut.trace_characters + 64) < 16_384
    assert len(notes) == 6 and "prefill characters: 18000, 295000, 2200000 became 493, 1974, 7897" in notes


def test_a_size_that_fits_is_kept_beside_the_largest_that_does():
    cut, _ = fit(FULL, Limits(131_072, None, 4.5))
    assert cut.prefill[:2] == FULL.prefill[:2] and 295_000 < cut.prefill[2] < 131_072 * 4.5 and len(cut.prefill) == 3
    assert cut.needles == (295_000, cut.needles[1]) and cut.needles[1] < cut.prefill[2]


def test_a_pool_counts_only_where_requests_run_together():
    assert Limits(8192, 16_384, 1.0).room(0) == Limits(8192, None, 1.0).room(0, together=4)
    assert Limits(8192, 16_384, 1.0).room(0, together=4) == Limits(4096, None, 1.0).room(0)
    assert Limits(None, None, 1.0).room(0) is None and Limits(64, None, 1.0).room(100) == 1


@pytest.mark.parametrize("given", [None, 1024])
def test_a_run_asks_the_endpoint_and_says_what_it_cut(endpoint, behaviour, tmp_path, given):
    behaviour.token_seconds = 0.0005
    behaviour.says["/v1/models"] = {"data": [{"id": "double", "max_model_len": 2000}]}
    behaviour.says["/server_info"] = {"max_total_num_tokens": 3000}
    plan = Plan((4000,), 0, 300, 8, (1,), (None,), (0.5,), 1)
    assert (endpoint.context_length(), endpoint.pool_tokens(), endpoint.takes_images()) == (2000, 3000, None)
    conditions = Conditions(device="d", model="m", runtime="r", note="a test")
    result = qualify(endpoint, plan, tmp_path, name="cut", conditions=conditions, context=given, say=print)
    longest = given or 2000
    assert result.conditions.note.startswith("a test; cut to the endpoint's limits")
    assert f"({longest:,} tokens a request, 3,000 at once): prefill characters: 4000 became " in result.conditions.note
    asked = [json.loads(line)["request"] for line in endpoint.record.read_text().splitlines()]
    lengths = [len(body["prompt"]) + body["max_tokens"] for body in asked[1:] if "prompt" in body]
    assert 0.8 * longest < max(lengths) <= longest
    needles = next(one for one in result.measurements if one.kind == "needles")
    assert needles.value == 1 and needles.context_tokens > 0.7 * longest


def test_the_longest_needle_needs_a_length(endpoint, behaviour, tmp_path):
    plan = Plan((), 0, 300, 8, (1,), (None,), (0.5,), 1)
    behaviour.token_seconds = 0.0005
    assert endpoint.context_length() is None
    conditions = Conditions(device="d", model="m", runtime="r")
    result = qualify(endpoint, plan, tmp_path, name="longest", conditions=conditions, say=print)
    needles = next(one for one in result.measurements if one.kind == "needles")
    assert needles.value is None and "does not say how long its context is" in needles.refused


def test_a_trace_that_is_too_long_as_recorded_is_not_sent(endpoint, behaviour, tmp_path):
    behaviour.token_seconds = 0.0005
    conditions = Conditions(device="d", model="m", runtime="r")
    plan = Plan((), 0, 300, 8, (1,), (), (0.5,), 1, trace_characters=900, trace_concurrency=(1, 2))
    result = qualify(endpoint, plan, tmp_path, name="t", conditions=conditions, context=1024, say=print)
    found = [one for one in result.measurements if one.kind == "trace makespan"]
    assert len(found) == 2
    for one in found:
        assert re.fullmatch(r"the trace has 1,\d{3} characters at least, 9\d\d fit", one.refused), one.refused
    assert "[replay" not in endpoint.record.read_text()
