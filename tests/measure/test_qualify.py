"""Qualification against an endpoint that a test controls: what is measured, and every way to be fooled."""

import json

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.endpoint import Endpoint
from sm120.integration.measure.qualify import qualify
from sm120.integration.measure.report import write_report
from sm120.integration.measure.requests import PLANS, Plan
from sm120.integration.measure.result import UNITS, Conditions, load_result
from sm120.integration.serve.profile import FOLDER

SMALL = Plan((300, 600), 300, 100, 8, (1, 4), (400,), (0.1, 0.9), 2, efforts=("default", "high"), pictures=1,
             trace_characters=3000, trace_concurrency=(1, 2))  # fmt: skip
CONDITIONS = Conditions(device="a double", model="double", runtime="none")


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
