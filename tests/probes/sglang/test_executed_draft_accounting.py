"""Probe of executed-draft-accounting: proposed drafts are what each step verified, not today's width times steps."""

import sys
from pathlib import Path

import pytest
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

sys.path.insert(0, str(Path(__file__).parent))
import spec_counts as counts

STARTUP_WIDTH = 4


@pytest.fixture(autouse=True)
def config():
    with get_context().override_server_args(
        speculative_algorithm="EAGLE", speculative_num_steps=3, speculative_num_draft_tokens=STARTUP_WIDTH
    ):
        yield


def test_fixed_width_keeps_todays_numbers():
    run = counts.Accounting(["a", "b"])
    for accepted in ({"a": 3, "b": 0}, {"a": 1, "b": 2}, {"a": 0}):
        run.take(counts.Step(STARTUP_WIDTH, accepted))
    a, b = run.summary("a"), run.summary("b")
    assert (a["spec_num_proposed_drafts"], a["spec_num_correct_drafts"], a["spec_verify_ct"]) == (9, 4, 3)
    assert (b["spec_num_proposed_drafts"], b["spec_num_correct_drafts"], b["spec_verify_ct"]) == (6, 2, 2)
    assert a["spec_accept_rate"] == 4 / 9
    assert run.logged_rate() == round(6 / 15, 2)


def test_each_step_counts_with_its_own_width():
    run = counts.Accounting(["a"])
    for width, accepted in ((4, 3), (8, 7), (2, 0), (1, 0)):
        run.take(counts.Step(width, {"a": accepted}))
    a = run.summary("a")
    assert a["spec_num_proposed_drafts"] == 3 + 7 + 1 + 0
    assert a["spec_accept_rate"] == 10 / 11
    assert run.logged_rate() == round(10 / 11, 2)


def test_a_step_without_drafts_proposes_none():
    run = counts.Accounting(["a"])
    run.take(counts.Step(4, {"a": 2}))
    for _ in range(5):
        run.take(counts.Step(1, {"a": 0}))
    assert run.summary("a")["spec_num_proposed_drafts"] == 3
    assert run.summary("a")["spec_verify_ct"] == 6


def test_capped_accept_counts_what_was_verified_and_reports_the_cap():
    run = counts.Accounting(["a", "b"], SpeculativeAlgorithm.DSPARK)
    run.take(counts.Step(4, {"a": 0, "b": 3}, cap_lens={"a": 1, "b": 4}))
    a = run.summary("a")
    assert (a["spec_num_proposed_drafts"], a["spec_cap_length"]) == (3, 1.0)


def test_compact_verify_counts_each_requests_own_rows():
    run = counts.Accounting(["a", "b"], SpeculativeAlgorithm.DSPARK)
    run.take(counts.Step(4, {"a": 1, "b": 3}, cap_lens={"a": 2, "b": 4}, compact=True))
    run.take(counts.Step(4, {"a": 0, "b": 1}, cap_lens={"a": 1, "b": 3}, compact=True))
    assert run.summary("a")["spec_num_proposed_drafts"] == 1
    assert run.summary("b")["spec_num_proposed_drafts"] == 5
    assert run.summary("a")["spec_accept_rate"] == 1.0
    assert run.logged_rate() == round(5 / 6, 2)


def test_a_retracted_request_is_not_charged_while_away_and_keeps_its_counts():
    run = counts.Accounting(["a", "b"])
    run.take(counts.Step(6, {"a": 2, "b": 5}))
    run.reqs["a"].is_retracted = True
    run.take(counts.Step(6, {"a": 1, "b": 0}))
    run.reqs["a"].is_retracted = False
    run.take(counts.Step(3, {"a": 2}))
    assert run.summary("a")["spec_num_proposed_drafts"] == 5 + 2
    assert run.summary("a")["spec_num_correct_drafts"] == 4


# Upstream's summary of a request, whatever its steps proposed.
SUMMARY = {
    "spec_accept_rate",
    "spec_accept_length",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_verify_ct",
}


def test_a_request_without_a_proposed_draft_keeps_its_summary():
    run = counts.Accounting(["a"])
    for _ in range(3):
        run.take(counts.Step(1, {"a": 0}))
    a = run.summary("a")
    assert a.keys() >= SUMMARY
    assert (a["spec_verify_ct"], a["spec_accept_length"]) == (3, 1.0)
    assert (a["spec_num_proposed_drafts"], a["spec_accept_rate"]) == (0, 0.0)


def test_a_request_always_capped_to_one_row_keeps_its_summary():
    run = counts.Accounting(["a", "b"], SpeculativeAlgorithm.DSPARK)
    for _ in range(2):
        run.take(counts.Step(4, {"a": 0, "b": 2}, cap_lens={"a": 1, "b": 4}, compact=True))
    a = run.summary("a")
    assert a.keys() >= SUMMARY
    assert (a["spec_verify_ct"], a["spec_cap_length"], a["spec_num_proposed_drafts"]) == (2, 1.0, 0)


@pytest.mark.parametrize("num_non_draft", [1, 2])
def test_an_algorithm_that_gives_only_the_width_of_its_output(num_non_draft):
    """Upstream takes the results of registered algorithms without speculative_num_draft_tokens."""
    with get_context().override_server_args(
        speculative_algorithm="EAGLE", speculative_num_steps=None, speculative_num_draft_tokens=None
    ):
        run = counts.Accounting(["a"])
        for stride, accepted in ((5, 3), (3, 0)):
            run.take(counts.Step(stride, {"a": accepted}, stride_only=True, num_non_draft=num_non_draft))
        a = run.summary("a")
    assert (a["spec_num_proposed_drafts"], a["spec_num_correct_drafts"]) == (5 + 3 - 2 * num_non_draft, 3)
