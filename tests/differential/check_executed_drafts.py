"""Invariants of the draft counts over any mix of steps: widths, caps, batches, retraction."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from spec_counts import Accounting, Step

NAMES = ["a", "b", "c"]
WIDTHS = st.integers(1, 8)


@pytest.fixture(autouse=True)
def config():
    with get_context().override_server_args(
        speculative_algorithm="EAGLE", speculative_num_steps=3, speculative_num_draft_tokens=4
    ):
        yield


@st.composite
def steps(draw, widths=WIDTHS):
    width = draw(widths)
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    mode = draw(st.sampled_from(["full", "capped", "compact"]))
    caps = None if mode == "full" else {name: draw(st.integers(1, width)) for name in names}
    accepted = {name: draw(st.integers(0, (width if caps is None else caps[name]) - 1)) for name in names}
    return Step(width, accepted, caps, compact=mode == "compact")


def executed(step: Step, name: str) -> int:
    """Draft rows of one request that the target ran in one step."""
    return (step.cap_lens[name] if step.compact else step.width) - 1


@given(run=st.lists(steps(), min_size=1, max_size=12), away=st.lists(st.sampled_from([*NAMES, None]), max_size=12))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_proposed_is_what_ran(run, away):
    accounting = Accounting(NAMES, SpeculativeAlgorithm.DSPARK)
    live = []
    for i, step in enumerate(run):
        # A retracted request may still be in the batch whose result arrives.
        retracted = away[i] if i < len(away) else None
        for name, req in accounting.reqs.items():
            req.is_retracted = name == retracted
        accounting.take(step)
        live.append([name for name in step.accepted if name != retracted])
    for name in NAMES:
        mine = [step for step, names in zip(run, live, strict=True) if name in names]
        proposed = sum(executed(step, name) for step in mine)
        accepted = sum(step.accepted[name] for step in mine)
        assert accepted <= proposed
        meta = accounting.summary(name)
        if proposed:
            assert meta["spec_num_proposed_drafts"] == proposed
            assert meta["spec_num_correct_drafts"] == accepted
            assert math.isclose(meta["spec_accept_rate"], accepted / proposed)
    ran = sum(executed(step, name) for step in run for name in step.accepted)
    accepted = sum(sum(step.accepted.values()) for step in run)
    assert accounting.logged_rate() == round(accepted / ran if ran else 0, 2)


@given(run=st.lists(steps(widths=st.just(4)).filter(lambda step: not step.compact), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fixed_width_gives_width_times_steps(run):
    accounting = Accounting(NAMES, SpeculativeAlgorithm.DSPARK)
    for step in run:
        accounting.take(step)
    for name, req in accounting.reqs.items():
        if req.spec_verify_ct:
            assert accounting.summary(name)["spec_num_proposed_drafts"] == req.spec_verify_ct * 3
