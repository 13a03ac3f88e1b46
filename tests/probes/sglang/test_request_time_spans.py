"""The log line of a finished request says how its forward time divides into prefill and what came after."""

import pytest
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.observability import req_time_stats
from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats


def spans_of(stats: SchedulerReqTimeStats) -> dict[str, str]:
    return dict(field.split("=") for field in stats.convert_to_duration().split(", "))


def finished_request(**times) -> SchedulerReqTimeStats:
    stats = SchedulerReqTimeStats(disagg_mode=DisaggregationMode.NULL)
    stats.queue_duration_s = 0.5
    for name, value in times.items():
        setattr(stats, name, value)
    return stats


def test_spans_add_up_to_the_forward_duration():
    stats = finished_request(
        wait_queue_entry_time=1.0, forward_entry_time=1.5, prefill_finished_time=1.75, completion_time=3.0
    )
    spans = spans_of(stats)
    assert list(spans) == [
        "queue_duration",
        "forward_duration",
        "initial_prefill_elapsed",
        "post_prefill_elapsed",
        "entry_time",
    ]
    assert spans["queue_duration"] == "500.00ms"
    assert spans["forward_duration"] == "1500.00ms"
    assert spans["initial_prefill_elapsed"] == "250.00ms"
    assert spans["post_prefill_elapsed"] == "1250.00ms"


@pytest.mark.parametrize(
    ("times", "prefill", "post_prefill"),
    [
        ({}, "0.00ms", "0.00ms"),
        ({"forward_entry_time": 1.0}, "0.00ms", "0.00ms"),
        # Aborted before it was prefilled
        ({"forward_entry_time": 1.0, "completion_time": 2.0}, "0.00ms", "0.00ms"),
        # Logged before it was completed
        ({"forward_entry_time": 1.0, "prefill_finished_time": 2.0}, "1000.00ms", "0.00ms"),
        ({"prefill_finished_time": 1.0, "completion_time": 2.0}, "0.00ms", "1000.00ms"),
        # The whole output is the token that prefill gave
        (
            {"forward_entry_time": 1.0, "prefill_finished_time": 2.0, "completion_time": 2.0},
            "1000.00ms",
            "0.00ms",
        ),
    ],
)
def test_span_with_an_end_that_is_not_set_is_zero(times, prefill, post_prefill):
    spans = spans_of(finished_request(**times))
    assert spans.get("initial_prefill_elapsed") == prefill
    assert spans.get("post_prefill_elapsed") == post_prefill


def test_retraction_and_second_prefill_are_after_the_initial_prefill():
    stats = finished_request()
    stats.set_wait_queue_entry_time(ts=1.0)
    stats.set_forward_entry_time(ts=2.0)
    stats.set_prefill_finished_time(ts=3.0)
    stats.set_retract_time(ts=4.0)
    stats.set_wait_queue_entry_time(ts=4.0)
    stats.set_forward_entry_time(ts=6.0)
    stats.set_prefill_finished_time(ts=7.0)
    stats.set_completion_time(ts=9.0)
    spans = spans_of(stats)
    assert spans.get("initial_prefill_elapsed") == "1000.00ms"
    assert spans.get("post_prefill_elapsed") == "6000.00ms"


def test_request_that_finishes_at_once_has_no_spans():
    stats = finished_request()
    stats.set_quick_finish_time(ts=5.0)
    spans = spans_of(stats)
    assert spans.get("initial_prefill_elapsed") == "0.00ms"
    assert spans.get("post_prefill_elapsed") == "0.00ms"


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"forward_entry_time": 2.0, "prefill_finished_time": 1.0, "completion_time": 3.0}, "initial_prefill_elapsed"),
        ({"forward_entry_time": 1.0, "prefill_finished_time": 3.0, "completion_time": 2.0}, "post_prefill_elapsed"),
    ],
)
def test_negative_span_is_caught_in_tests(times, named, monkeypatch):
    monkeypatch.setattr(req_time_stats, "SGLANG_TEST_REQUEST_TIME_STATS", True)
    caught = None
    try:
        finished_request(**times).convert_to_duration()
    except AssertionError as error:
        caught = str(error)
    assert caught is not None, "not caught"
    assert f"{named}=-1.0 < 0" in caught


@pytest.mark.parametrize("mode", [DisaggregationMode.PREFILL, DisaggregationMode.DECODE])
def test_disaggregated_lines_are_as_before(mode):
    stats = finished_request(forward_entry_time=1.0, prefill_finished_time=2.0, completion_time=3.0)
    stats.disagg_mode = mode
    assert "elapsed" not in stats.convert_to_duration()
