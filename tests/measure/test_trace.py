"""A replayed trace: the same for every endpoint, and rates that say what ran beside them."""

import itertools
import json

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure import overlap
from sm120.integration.measure.endpoint import Answer, NotAnswered
from sm120.integration.measure.overlap import band_of, overlap_of, trace_rates, union_seconds
from sm120.integration.measure.qualify import of_trace
from sm120.integration.measure.trace import HARBOUR, Told, load_trace, prompts, replay


def answer(sent=0.0, first=1.0, last=3.0, **changes) -> Answer:
    whole = dict(
        prompt_tokens=100, completion_tokens=21, first_tokens=1, cached_tokens=0, tiers=None, text="", finish=""
    )
    return Answer(sent, first, last, **whole | changes)


def told(*answers) -> list[Told]:
    return [Told(session, 0, 21, one) for session, one in enumerate(answers)]


def test_each_prompt_begins_with_the_one_before():
    trace = load_trace()
    built = prompts(trace, 4000, seed="a", session=0)
    assert len(built) == len(trace.turns) == 7
    for before, turn, after in zip(built, trace.turns, built[1:], strict=False):
        assert after.startswith(before + turn.assistant) and len(after) > len(before)
    assert len(built[-1]) == pytest.approx(4000, rel=0.1)
    assert len(prompts(trace, 60_000, seed="a", session=0)[-1]) == pytest.approx(60_000, rel=0.02)
    # Sessions share the system text and part behind it; another seed shares nothing.
    other = prompts(trace, 4000, seed="a", session=1)
    shared = built[0].index("[session 0]")
    assert other[0][:shared] == built[0][:shared] and other[-1] != built[-1]
    assert prompts(trace, 4000, seed="b", session=0)[0][:10] != built[0][:10]


def test_a_replay_sends_what_was_recorded_and_waits_for_each_turn(endpoint, behaviour):
    trace = load_trace()
    behaviour.token_seconds, behaviour.start_seconds = 0.002, 0.02
    found = replay(endpoint, trace, 2, 3000, seed="a", waits=False)
    assert [(one.session, one.turn) for one in found] == [(s, t) for s in range(2) for t in range(7)]
    assert [one.asked for one in found[:7]] == [turn.new_tokens for turn in trace.turns]
    for session in (found[:7], found[7:]):
        for before, after in itertools.pairwise(session):
            assert after.answer.sent >= before.answer.last
            # The endpoint has seen the whole prompt before, as the beginning of this one.
            assert after.answer.cached_tokens == before.answer.prompt_tokens
    sent = [json.loads(line)["request"]["prompt"] for line in endpoint.record.read_text().splitlines()]
    assert sorted(sent) == sorted(p for s in range(2) for p in prompts(trace, 3000, seed="a", session=s))
    rates = trace_rates(found)
    assert (
        rates.refused is None and rates.makespan > 0 and {one.band for one in rates.bands} == {(0, 1024), (1024, 4096)}
    )
    assert {one.overlap for one in rates.streams} - {"alone"}
    assert max(one.mean_overlap for one in rates.bands) > 1


def test_one_session_is_always_alone(endpoint, behaviour):
    rates = trace_rates(replay(endpoint, load_trace(), 1, 3000, seed="a", waits=False))
    assert {one.overlap for one in rates.streams} == {"alone"}
    assert all(one.mean_overlap == pytest.approx(1) for one in rates.bands)
    # Alone, the union is the sum; what is left between the two rates is mean against median.
    for stream, band in zip(rates.streams, rates.bands, strict=True):
        assert min(stream.rates) <= band.rate <= max(stream.rates)


def check_union(union) -> None:
    assert union([(0, 2), (1, 3), (5, 6)]) == 4
    assert union([(0, 10), (2, 3), (4, 5)]) == 10
    assert union([(5, 6), (0, 2)]) == 3
    assert union([(0, 2), (2, 3)]) == 3


def check_overlap(classify) -> None:
    one = answer(0, 10, 20)
    for others, kind in (
        ([], "alone"),
        ([answer(0, 1, 10)], "alone"),  # ends as it begins
        ([answer(20, 21, 30)], "alone"),
        ([answer(0, 1, 10.5)], "others decoding"),
        ([answer(0, 2, 30)], "others decoding"),
        ([answer(19, 25, 30)], "others prefilling"),
        ([answer(9, 10.5, 11)], "others prefilling"),
        ([answer(0, 2, 30), answer(12, 13, 14)], "others prefilling"),
        ([answer(5, 10, 15)], "others decoding"),  # its prefill ends as this decoding begins
    ):
        assert classify(one, others) == kind, others


def check_rates(rates) -> None:
    """Two requests that decode from 1 to 3 and from 2 to 4 s, and one far away in a longer context."""
    found = rates(
        told(answer(0, 1, 3), answer(0, 2, 4, first_tokens=3), answer(6, 8, 12, prompt_tokens=1020)),
    )
    # 20 and 18 tokens after the first event; at least one of the first two decoded for 3 s, and both for 1 s.
    by_kind = {one.overlap: one.rates for one in found.streams}
    assert by_kind == {"alone": [5.0], "others prefilling": [10.0], "others decoding": [9.0]}
    assert [band.band for band in found.bands] == [(0, 1024)]
    band = found.bands[0]
    assert band.requests == 3 and band.context == 100
    assert band.rate == pytest.approx((20 + 18 + 20) / (3 + 4)) and band.mean_overlap == pytest.approx(8 / 7)
    assert found.makespan == pytest.approx(63 / 12) and found.tokens == 63


def test_definitions():
    check_union(union_seconds)
    check_overlap(overlap_of)
    check_rates(trace_rates)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda spans: sum(end - start for start, end in spans),
        lambda spans: max(end for _, end in spans) - min(start for start, _ in spans),
    ],
    ids=["sum", "first to last"],
)
def test_a_wrong_union_is_caught(monkeypatch, wrong):
    with pytest.raises(AssertionError):
        check_union(wrong)
    monkeypatch.setattr(overlap, "union_seconds", wrong)
    with pytest.raises(AssertionError):
        check_rates(trace_rates)


def _inclusive(one, others):
    wide = Answer(**{**vars(one), "first": one.first - 1e-9, "last": one.last + 1e-9})
    return overlap_of(wide, others)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda one, others: "alone",
        lambda one, others: (
            "others decoding" if overlap_of(one, others) == "others prefilling" else overlap_of(one, others)
        ),
        _inclusive,
        lambda one, others: overlap_of(answer(one.sent, one.sent, one.last), others),
    ],
    ids=["none", "no prefill", "touching", "own prefill inside"],
)
def test_a_wrong_overlap_is_caught(wrong):
    with pytest.raises(AssertionError):
        check_overlap(wrong)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("_after_first", lambda one: one.asked),
        ("_after_first", lambda one: one.asked - 1),
        ("_span", lambda one: one.answer.last - one.answer.sent),
        ("band_of", lambda tokens: band_of(tokens + 21)),
        ("overlap_of", lambda one, others: "alone"),
    ],
    ids=["first token counts", "one first token", "prefill inside", "band of the end", "overlap merged"],
)
def test_a_wrong_rate_is_caught(monkeypatch, part, wrong):
    monkeypatch.setattr(overlap, part, wrong)
    with pytest.raises(AssertionError):
        check_rates(trace_rates)


def test_bands():
    assert [band_of(tokens) for tokens in (0, 1023, 1024, 4095, 4096, 524_288)] == [
        (0, 1024), (0, 1024), (1024, 4096), (1024, 4096), (4096, 16384), (262_144, 1_048_576),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="tokens is -1"):
        band_of(-1)
    far = trace_rates(told(answer(), answer(5, 6, 8, prompt_tokens=5000)))
    assert [(one.band, one.rate) for one in far.bands] == [((0, 1024), 10.0), ((4096, 16384), 10.0)]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (answer(prompt_tokens=None), "has no band"),
        (answer(completion_tokens=20), "session 1 turn 0 made 20 of 21"),
        (answer(completion_tokens=None), "made None of 21"),
        (answer(first_tokens=21), "one piece"),
        (answer(first=3.0), "one piece"),
    ],
)
def test_one_request_that_cannot_be_timed_spoils_the_replay(bad, says):
    rates = trace_rates(told(answer(), bad))
    assert says in rates.refused and not rates.streams and not rates.bands and rates.makespan is None
    found = of_trace(rates, {"concurrency": 2, "trace": "t"})
    assert len(found) == 3 and all(one.value is None and one.trace == "t" for one in found)
    assert trace_rates([]).refused == "nothing was asked"


def test_a_refused_turn_ends_the_replay(endpoint, behaviour):
    behaviour.one_piece = True
    assert "one piece" in trace_rates(replay(endpoint, load_trace(), 1, 3000, seed="a", waits=False)).refused
    endpoint.complete = lambda *args, **more: (_ for _ in ()).throw(NotAnswered("too long", 400))
    with pytest.raises(NotAnswered, match="too long"):
        replay(endpoint, load_trace(), 3, 3000, seed="b", waits=False)


def test_bad_numbers(endpoint):
    with pytest.raises(ValueError, match="concurrency is 0"):
        replay(endpoint, load_trace(), 0, 100, seed="a")
    with pytest.raises(ValueError, match="characters is -5"):
        replay(endpoint, load_trace(), 1, -5, seed="a")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda trace: trace.pop("system"), "system: Field required"),
        (lambda trace: trace.update(turns=trace["turns"][:1]), "turns: List should have at least 2"),
        (lambda trace: trace["turns"][1].update(weight=-1), "turns.1.weight"),
        (lambda trace: trace["turns"][0].update(new_tokens=1), "turns.0.new_tokens"),
        (lambda trace: trace["turns"][0].update(role="assistant"), "turns.0.role"),
        (lambda trace: trace["turns"][2].update(wait_s="long"), "turns.2.wait_s"),
        (lambda trace: trace["turns"][2].update(asistant="x"), "turns.2.asistant"),
        (lambda trace: trace["turns"][2].update(text=""), "turns.2.text"),
    ],
)
def test_a_bad_trace_is_named(tmp_path, change, says):
    trace = json.loads(HARBOUR.read_text())
    change(trace)
    (tmp_path / "t.json").write_text(json.dumps(trace))
    with pytest.raises(Refusal, match=r"qualify-trace.*t\.json") as refused:
        load_trace(tmp_path / "t.json")
    assert says in str(refused.value)


def test_a_trace_that_is_none(tmp_path):
    (tmp_path / "t.json").write_text("turns")
    with pytest.raises(Refusal, match="qualify-trace.*Invalid JSON"):
        load_trace(tmp_path / "t.json")
    with pytest.raises(Refusal, match="qualify-trace.*cannot be read"):
        load_trace(tmp_path / "none.json")
    done = CliRunner().invoke(app, ["qualify", "--trace", str(tmp_path / "t.json"), "--folder", str(tmp_path)])
    assert "qualify-trace" in str(done.exception) or "report-matplotlib" in str(done.exception)


def test_two_files_of_one_name_are_two_traces(tmp_path):
    trace = json.loads(HARBOUR.read_text())
    trace["turns"][0]["text"] += " Please."
    (tmp_path / "t.json").write_text(json.dumps(trace))
    other = load_trace(tmp_path / "t.json")
    assert other.name == load_trace().name and other.digest != load_trace().digest and len(other.digest) == 8
