"""Qualification against an endpoint that a test controls: what is measured, and every way to be fooled."""

import json

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.cases import TOOL_CASES, has_number, measure_needles, measure_tools, score
from sm120.integration.measure.decode import decode_rates, measure_decode
from sm120.integration.measure.endpoint import Answer, Endpoint, NotAnswered, take
from sm120.integration.measure.prefill import (
    cold_timing,
    measure_prefill,
    measure_restore,
    measure_restores,
    restore_timing,
    restores_timing,
)
from sm120.integration.measure.qualify import qualify
from sm120.integration.measure.report import write_report
from sm120.integration.measure.requests import PLANS, Plan
from sm120.integration.measure.result import UNITS, Conditions, load_result
from sm120.integration.measure.texts import needle_text, text
from sm120.integration.serve.profile import FOLDER

SMALL = Plan((300, 600), 300, 100, 8, (1, 4), (400,), (0.1, 0.9), 2, efforts=("default", "high"), pictures=1,
             trace_characters=3000, trace_concurrency=(1, 2))  # fmt: skip
CONDITIONS = Conditions(device="a double", model="double", runtime="none")


def answer(**changes) -> Answer:
    whole = dict(sent=0.0, first=1.0, last=3.0, prompt_tokens=100, completion_tokens=21, first_tokens=1,
                 cached_tokens=0, tiers=None, text="", finish="length")  # fmt: skip
    return Answer(**whole | changes)


def test_texts_share_no_beginning():
    texts = [text(str(seed), 200) for seed in range(50)]
    assert len({one[:24] for one in texts}) == 50 and text("1", 200) == texts[1]
    for depth in (0.0, 0.5, 1.0):
        prompt, number = needle_text("s", 1000, depth)
        assert prompt.count(number) == 1
        assert abs(prompt.index(number) / len(prompt) - depth) < 0.2
    with pytest.raises(ValueError, match="depth is 1.5"):
        needle_text("s", 100, 1.5)


def test_three_numbers_that_stay_apart(endpoint, behaviour):
    behaviour.start_seconds = 0.05
    cold, reuse = measure_prefill(endpoint, 300, seed="a", repeats=3)
    assert cold.kind == "cold prefill" and cold.refused is None
    assert cold.rate == pytest.approx(cold.tokens / 0.05, rel=0.4)
    assert reuse.kind == "radix reuse" and reuse.rate is None and reuse.refused is None
    restore = measure_restore(endpoint, 300, seed="a", settle=0)
    assert restore.kind == "storage restore" and restore.rate is None
    assert restore.tokens > 200 and restore.refused is None


@pytest.mark.parametrize(
    ("report", "says"),
    [("none", "does not report cached tokens"), ("zero", "reported as not cached"), ("all", "never sent before")],
)
def test_no_prefill_number_where_cold_and_cached_look_alike(endpoint, behaviour, report, says):
    behaviour.report = report
    cold, reuse = measure_prefill(endpoint, 300, seed="a")
    assert cold.rate is None and says in cold.refused
    assert reuse.refused


def test_one_warm_prompt_takes_the_number_away(endpoint, behaviour):
    behaviour.device.add(text("a prefill 1", 300))
    cold, _ = measure_prefill(endpoint, 300, seed="a")
    assert cold.rate is None and "1 of 3 prompts were not cold: device" in cold.refused
    assert cold_timing([answer()], None).rate == pytest.approx(100)


def test_a_restore_is_only_what_came_from_storage(endpoint, behaviour):
    behaviour.storage = False
    assert measure_restore(endpoint, 300, seed="a", settle=0).refused == "the prefix came from: cold"
    behaviour.storage, behaviour.tiers = True, False
    assert "tier unknown" in measure_restore(endpoint, 300, seed="b", settle=0).refused
    behaviour.flush = False
    assert "cannot drop" in measure_restore(endpoint, 300, seed="c", settle=0).refused
    mixed = answer(cached_tokens=90, tiers={"device": 10, "host": 0, "storage": 80})
    assert restore_timing(mixed).refused == "the prefix came from: mixed"


def test_restores_at_once_count_only_when_all_came_from_storage(endpoint, behaviour):
    found = measure_restores(endpoint, 3, 200, seed="a", settle=0)
    assert found.refused is None and found.tokens > 3 * 190
    behaviour.storage = False
    assert "3 of 3 prefixes came from: cold" in measure_restores(endpoint, 3, 200, seed="b", settle=0).refused
    good = answer(cached_tokens=80, tiers={"device": 0, "host": 0, "storage": 80})
    assert restores_timing([good, good]).tokens == 160 and restores_timing([good, good]).seconds == [1.0]
    assert restores_timing([good, answer()]).tokens is None


def test_decode_both_ways():
    streams = [answer(), answer(sent=0.0, first=2.0, last=6.0)]
    found = decode_rates(streams, 21)
    assert found.streams == [10.0, 5.0] and found.per_stream == 7.5
    assert found.makespan == pytest.approx(42 / 6)
    # Four tokens in the first event are not "after the first token".
    assert decode_rates([answer(first_tokens=4)], 21).per_stream == pytest.approx(17 / 2)


def test_decode_refuses_what_it_cannot_time(endpoint, behaviour):
    assert measure_decode(endpoint, 2, seed="a", characters=50, tokens=6).refused is None
    behaviour.stop_early = True
    assert "made 3 of 6 tokens" in measure_decode(endpoint, 2, seed="b", characters=50, tokens=6).refused
    behaviour.stop_early, behaviour.one_piece = False, True
    assert "one piece" in measure_decode(endpoint, 1, seed="c", characters=50, tokens=6).refused
    assert "made None" in decode_rates([answer(completion_tokens=None)], 21).refused


def test_needles(endpoint, behaviour):
    assert all(needle.found for needle in measure_needles(endpoint, 400, seed="a", depths=(0.0, 0.9)))
    behaviour.echo_needle = False
    assert not any(needle.found for needle in measure_needles(endpoint, 400, seed="b", depths=(0.0, 0.9)))
    assert has_number(" 1,234,567.", "1234567") and not has_number("7 or 1234567", "1234567")
    assert not has_number("", "1") and not has_number("12345678", "1234567")


def test_tool_calls_are_scored_twice(endpoint, behaviour):
    wanted = {asked: call for _, asked, call in TOOL_CASES}
    behaviour.chat = lambda asked: [(wanted[asked][0], json.dumps(wanted[asked][1]))] if wanted[asked] else []
    assert all(one.exact and one.semantic for one in measure_tools(endpoint))
    behaviour.chat = None
    assert all(one.exact is None and "400" in one.refused for one in measure_tools(endpoint))


@pytest.mark.parametrize(
    ("calls", "exact", "semantic"),
    [
        ([("tide_at", '{"hour": 14, "gauge": "Nordmole"}')], True, True),
        ([("tide_at", '{"hour": "14", "gauge": " nordmole"}')], False, True),
        ([("tide_at", '{"hour": 14.0, "gauge": "Nordmole"}')], False, True),
        ([("tide_at", '{"hour": 15, "gauge": "Nordmole"}')], False, False),
        ([("tide_at", '{"hour": 14, "gauge": "Nordmole", "x": 1}')], False, False),
        ([("book_berth", '{"hour": 14, "gauge": "Nordmole"}')], False, False),
        ([("tide_at", '{"hour": 14,')], False, False),
        ([("tide_at", '{"hour": 14, "gauge": "Nordmole"}')] * 2, False, False),
        ([], False, False),
    ],
    ids=["right", "quoted", "float", "other", "more", "name", "cut", "twice", "none"],
)
def test_scores(calls, exact, semantic):
    made = answer(tool_calls=[{"name": name, "arguments": arguments} for name, arguments in calls])
    found = score("x", made, TOOL_CASES[0][2])
    assert (found.exact, found.semantic) == (exact, semantic)


def test_a_call_where_none_was_wanted_is_wrong():
    made = answer(tool_calls=[{"name": "tide_at", "arguments": "{}"}])
    assert score("x", made, None).exact is False and score("x", answer(), None).exact is True


def test_a_run_keeps_everything_and_ends_in_a_page(endpoint, behaviour, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    lines = []
    result = qualify(endpoint, SMALL, tmp_path, name="A run!", conditions=CONDITIONS, say=lines.append)
    assert load_result(tmp_path) == result and result.id == "a-run"
    kinds = [one.kind for one in result.measurements]
    assert kinds.count("cold prefill") == 2 and kinds.count("decode makespan") == 2
    refused = {one.kind for one in result.measurements if one.refused}
    assert refused == {kind for kind in UNITS if kind.startswith(("tool", "reasoning", "vision"))}
    assert kinds.count("trace makespan") == 2 and {"trace decode per stream", "trace decode in band"} <= set(kinds)
    page = write_report(result, tmp_path).read_text()
    for plot in ("prefill", "restore", "decode", "trace"):
        assert f"({plot}.png)" in page and (tmp_path / f"{plot}.png").read_bytes()[:4] == b"\x89PNG"
    wire = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert len(wire) == 1 + 2 * 2 * 2 + 2 + 2 * 4 + 5 + 2 + 3 + 1 + 1 + 3 * 7
    assert all("request" in one and "answer" in one for one in wire)
    assert sum(str(one["error"]).startswith("/v1/chat") for one in wire) == 5
    assert json.loads((tmp_path / "device.json").read_text())["device"]


def test_a_page_without_a_cache_report_has_no_prefill_number(endpoint, behaviour, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    behaviour.report = "none"
    result = qualify(endpoint, SMALL, tmp_path, name="a", conditions=CONDITIONS, say=lambda line: None)
    assert all(one.value is None for one in result.measurements if one.kind in ("cold prefill", "radix reuse"))
    page = write_report(result, tmp_path).read_text()
    rows = [line for line in page.splitlines() if line.startswith("| cold prefill")]
    assert rows and all("not measured" in row and "tok/s" not in row for row in rows)
    assert not (tmp_path / "prefill.png").exists()


def test_what_the_endpoint_declines_is_said_in_the_page(endpoint, behaviour, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")

    def talk(body):
        if "reasoning_effort" in body:
            return 400, "no such level"
        if isinstance(body["messages"][0]["content"], list):
            return 400, "only text"
        return {"text": "Answer: 3", "tokens": 5, "prompt_tokens": 40}

    behaviour.talk = talk
    plan = Plan((), 300, 100, 8, (1,), (), (), 1, efforts=("default", "high"), pictures=2)
    result = qualify(endpoint, plan, tmp_path, name="a", conditions=CONDITIONS, say=lambda line: None)
    assert load_result(tmp_path) == result
    rows = write_report(result, tmp_path).read_text().splitlines()
    for kind, shown in (("reasoning score", ["0.250 share", "refused"]), ("vision positions exact", ["not supported"])):
        cells = [[cell.strip() for cell in row.split("|")] for row in rows if row.startswith(f"| {kind} |")]
        assert [cell[3] for cell in cells] == shown


def test_an_endpoint_that_is_not_there(tmp_path):
    with pytest.raises(Refusal, match="qualify-endpoint"):
        Endpoint("http://127.0.0.1:9", tmp_path / "r", timeout=2)


def test_reasoning_is_timed_and_kept_apart_from_the_text():
    one = answer(first=0.0, last=0.0)
    for now, delta in ((1.0, {"reasoning_content": "Hm"}), (2.0, {"reasoning": "."}), (3.0, {"content": "Yes"})):
        take(one, {"choices": [{"delta": delta}]}, now)
    assert (one.first, one.last, one.reasoning, one.text) == (1.0, 3.0, "Hm.", "Yes")


def test_an_error_in_a_stream_is_no_answer():
    with pytest.raises(NotAnswered, match="out of memory"):
        take(answer(), {"error": {"message": "out of memory"}}, 0.0)


def test_refusals_of_the_command(tmp_path):
    run = CliRunner().invoke
    assert "qualify-plan" in str(run(app, ["qualify", "slow"]).exception)
    (tmp_path / "n").mkdir()
    done = run(app, ["qualify", "quick", "--name", "n", "--folder", str(tmp_path)])
    assert "qualify-exists" in str(done.exception) or "report-matplotlib" in str(done.exception)


@pytest.fixture
def command(tmp_path, endpoint, monkeypatch):
    """Runs the command against the double with as small a plan as can be; `folder` has what it made."""
    monkeypatch.setitem(PLANS, "quick", Plan((), 300, 100, 8, (1,), (), (), 1))
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path / "config"))
    folder = tmp_path / "runs"

    def run(*more: str, there: bool = True):
        url = endpoint.url if there else "http://127.0.0.1:9"
        return CliRunner().invoke(app, ["qualify", "quick", "--url", url, "--folder", str(folder), *more])

    run.folder = folder
    return run


def test_nobody_there_leaves_nothing_and_the_same_command_runs_later(command):
    for _ in range(2):
        assert "[qualify-endpoint]" in str(command("--name", "n", there=False).exception)
        assert not command.folder.exists()
    assert command("--name", "n").exit_code == 0 and (command.folder / "n" / "result.json").is_file()


@pytest.mark.parametrize("name", ["Ü", "..", "-", "../outside", "/outside"])
def test_a_name_that_is_none_is_refused_before_anything_is_asked(command, name, tmp_path):
    before = sorted(tmp_path.iterdir())
    assert "[qualify-name]" in str(command("--name", name, there=False).exception)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(Refusal, match="qualify-name"):
        qualify(None, SMALL, tmp_path, name=name, conditions=CONDITIONS)


def test_a_profile_of_ones_own_gives_its_name_and_not_its_path(command, tmp_path):
    own = tmp_path / "elsewhere" / "my.toml"
    own.parent.mkdir()
    own.write_text((FOLDER / "cpu-proof.toml").read_text().replace('name = "cpu-proof"', 'name = "mine"'))
    done = command("--profile", str(own))
    assert done.exit_code == 0, done.output
    (run,) = command.folder.iterdir()
    assert run.name.startswith("mine-quick-") and sorted(own.parent.iterdir()) == [own]
    assert load_result(run).conditions.profile == "mine"
