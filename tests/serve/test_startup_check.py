"""The table of a start: every row can turn to DIFFERENT, and to "not seen" when its line is gone or reworded."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.startup import assert_startup, passed
from sm120.integration.serve.startup.startup_check import EXPECTATIONS

LOGS = Path(__file__).parent / "startup_logs"
NAMES = ["flash-next", "qwen38-27b-dflash2"]


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))


def table(name: str, log: str, **options):
    return {row.name: row for row in assert_startup(load_profile(name), log, **options)}


@pytest.mark.parametrize("name", NAMES)
def test_a_start_as_meant_is_ok(name):
    rows = table(name, (LOGS / f"{name}.log").read_text())
    assert {row.verdict for row in rows.values()} == {"ok"}
    assert set(load_profile(name).expect) <= set(rows)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_log_shows_nothing_as_ok(name):
    rows = table(name, "The server is fired up and ready to roll!\n")
    assert {row.verdict for row in rows.values()} == {"not seen"} and not passed(list(rows.values()))


def test_the_second_pool_is_the_drafts():
    log = (LOGS / "qwen38-27b-dflash2.log").read_text()
    head, tail = log.rsplit("dtype: torch.float8_e4m3fn", 1)
    rows = table("qwen38-27b-dflash2", head + "dtype: torch.bfloat16" + tail)
    assert rows["draft_kv_dtype"].verdict == "DIFFERENT" and rows["kv_dtype"].verdict == "ok"


def test_a_graph_without_sizes_was_not_captured():
    log = (LOGS / "flash-next.log").read_text().replace("bs=[1, 2, 4]", "bs=[]")
    assert table("flash-next", log)["graph_target"].verdict == "not seen"


def test_an_argument_that_was_overridden_shows():
    log = (LOGS / "flash-next.log").read_text()
    row = assert_startup(load_profile("flash-next"), log.replace("'page_size': 64", "'page_size': 128"))[0]
    assert row.verdict == "DIFFERENT" and row.found == "page-size=128"
    row = assert_startup(load_profile("flash-next"), log.replace("'page_size': 64, ", ""))[0]
    assert row.verdict == "not seen" and row.found == "absent: page-size"
    # What a running server answers stands in for the line of the log.
    info = {key.replace("-", "_"): value for key, value in load_profile("cpu-proof").server.items()}
    rows = table("cpu-proof", "", info={**info, "max_total_num_tokens": 16384})
    assert rows["kv_tokens"].verdict == "ok" and "/server_info" in rows["kv_tokens"].source
    assert rows["kv_dtype"].verdict == "not seen"


def test_an_expectation_nobody_checks_is_refused():
    profile = load_profile("flash-next")
    profile.expect["fast"] = True
    with pytest.raises(ValueError, match=r"expect\.fast is none of"):
        assert_startup(profile, "")
    for name in ("cpu-proof", *NAMES):
        assert set(load_profile(name).expect) <= set(EXPECTATIONS)


def test_the_command_line(tmp_path):
    log = LOGS / "flash-next.log"
    run = CliRunner().invoke
    assert run(app, ["assert-startup", "flash-next", "--log", str(log)]).exit_code == 0
    worse = tmp_path / "log"
    worse.write_text(re.sub("TritonGDN|FlashInferGDN", "TritonGDN", log.read_text()))
    done = run(app, ["assert-startup", "flash-next", "--log", str(worse)], env={"COLUMNS": "200"})
    assert done.exit_code == 1 and "DIFFERENT" in done.output
    assert "startup-nothing" in str(run(app, ["assert-startup", "flash-next"]).exception)
    assert "startup-log" in str(run(app, ["assert-startup", "flash-next", "--log", "/nowhere"]).exception)
    done = run(app, ["assert-startup", "flash-next", "--url", "http://127.0.0.1:9"])
    assert "startup-url" in str(done.exception)


@pytest.mark.parametrize(
    ("was", "became", "row"),
    [
        ("max_running_requests=4,", "max_running_requests=3,", "max-running-requests, in effect"),
        ("context_len=524288", "context_len=262144", "context-length, in effect"),
        ("max_mamba_cache_size: 24,", "max_mamba_cache_size: 21,", "max-mamba-cache-size, in effect"),
        ("bs=[1, 2, 4],", "bs=[1, 2],", "requests of the largest graph"),
        ("(69 state slots,", "(50 state slots,", "host pool, states"),
    ],
)
def test_what_the_server_lowers_without_a_word_shows_as_asked_and_effective(was, became, row):
    text = (LOGS / "flash-next.log").read_text()
    assert was in text
    rows = {one.name: one for one in assert_startup(load_profile("flash-next"), text.replace(was, became))}
    assert rows[row].verdict == "DIFFERENT" and rows[row].expected != rows[row].found
    # What nobody said is not seen, which is never ok.
    gone = "\n".join(line for line in text.splitlines() if was not in line)
    assert {one.name: one for one in assert_startup(load_profile("flash-next"), gone)}.get(row) is None or {
        one.name: one.verdict for one in assert_startup(load_profile("flash-next"), gone)
    }[row] == "not seen"
