"""`sm120 prefix` and `sm120 metrics --once`: the tiers of a prompt, and what is wrong when nothing comes back."""

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.measure.prefix_commands import row, verdict


def invoke(*words):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, words)


def test_a_prompt_sent_twice_comes_from_the_gpu_and_after_a_flush_from_storage(endpoint, behaviour):
    done = invoke("prefix", "--url", endpoint.url, "--characters", "600")
    assert done.exit_code == 0 and "the prefix came back" in done.output
    behaviour.storage = True
    done = invoke("prefix", "--url", endpoint.url, "--characters", "600", "--flush", "--times", "3")
    assert done.exit_code == 0, done.output
    last = next(line for line in done.output.splitlines() if line.startswith("│ 3")).split("│")
    assert last[3].strip() == "0" and last[5].strip() not in ("", "0")


@pytest.mark.parametrize(("report", "says"), [("none", "--enable-cache-report"), ("zero", "nothing came back")])
def test_a_server_that_does_not_say_or_does_not_keep_is_no_success(endpoint, behaviour, report, says):
    behaviour.report = report
    done = invoke("prefix", "--url", endpoint.url, "--characters", "600")
    assert done.exit_code == 1 and says in done.output


def test_what_cannot_be_asked_is_refused(endpoint, tmp_path):
    assert "prefix-prompt" in str(invoke("prefix", "--url", endpoint.url, "--prompt", str(tmp_path / "no")).exception)
    assert "qualify-endpoint" in str(invoke("prefix", "--url", "http://127.0.0.1:9").exception)
    assert "metrics-source" in str(invoke("metrics", "--once", "--url", "http://127.0.0.1:9").exception)


def test_what_is_not_said_stays_empty(endpoint):
    answer = endpoint.complete("a prompt of some length " * 30, 1)
    answer.tiers = answer.cached_tokens = None
    assert row(answer)[1:5] == ["", "", "", ""] and "enable-cache-report" in verdict([answer])
    answer.cached_tokens, answer.tiers = 64, {"device": 64, "host": 0, "storage": 0}
    assert verdict([answer]) is None and "storage" in verdict([answer], flushed=True)
