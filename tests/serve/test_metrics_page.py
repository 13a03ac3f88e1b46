"""The metrics page: parsing, rates, what is not reported, and the page in a real browser."""

import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from sm120.integration.common.checkout import find_checkout
from sm120.integration.serve.metrics.metrics_page import PAGE, make_server
from sm120.integration.serve.metrics.prometheus import parse, view

CHECKOUT = find_checkout()

# In the words of the release's collector.
BEFORE = """\
# HELP sglang:spec_accept_length accepted tokens
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 3.25
sglang:spec_accept_rate{model_name="m"} 0.5625
sglang:spec_num_draft_tokens{model_name="m"} 8.0
sglang:spec_verify_calls_total{model_name="m"} 100.0
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 4000.0
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 1000.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 700.0
sglang:cached_tokens_total{cache_source="storage",model_name="say \\"}\\" 1"} 1300.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 500.0
"""
AFTER = BEFORE.replace(" 100.0", " 120.0").replace(" 500.0", " 560.0")


def test_what_is_shown():
    shown = view(parse(AFTER), parse(BEFORE), 2.0)
    assert shown == {
        "accept_length": 3.25,
        "accept_rate": 0.5625,
        "draft_rows": 8.0,
        # (3.25 - 1) / 0.5625: four of the seven drafts that the width allows were verified.
        "proposed": 4.0,
        "proposed_rate": 40.0,
        "verify_rounds": 10.0,
        "device_tokens": 700.0,
        "restored_host": 0.0,
        "restored_storage": 1300.0,
        "recomputed": 3000.0,
        "generated": 30.0,
    }


def test_what_the_server_does_not_say_is_not_zero():
    assert set(view([], None, 0.0).values()) == {None}
    first = view(parse(BEFORE), None, 0.0)
    assert first["generated"] is None and first["restored_storage"] == 1300.0
    assert view(parse(BEFORE), parse(AFTER), 2.0)["generated"] is None  # the server was restarted
    bare = "sglang:prompt_tokens_total 10\n"
    assert view(parse(bare), None, 0.0)["restored_host"] is None and view(parse(bare), None, 0.0)["recomputed"] == 10


@pytest.mark.parametrize(("old", "new"), [("3.25", "0.0"), ("3.25", "1.0"), ("0.5625", "0.0"), ("8.0", "0.0")])
def test_a_gauge_that_no_round_has_set_is_no_number(old, new):
    text = BEFORE.replace(old, new)
    if old == "3.25" and new == "1.0":
        text = text.replace("0.5625", "0.0")  # no draft was right: how many there were, nothing says
    shown = view(parse(text), None, 0.0)
    if old == "8.0":
        assert shown["draft_rows"] is None and shown["proposed"] == 4.0
        return
    assert shown["proposed"] is None and shown["proposed_rate"] is None
    assert shown["accept_length"] == {"0.0": None, "1.0": 1.0}[new] if old == "3.25" else 3.25


@pytest.mark.runtime
def test_the_metrics_are_those_of_the_release():
    """The names that the page reads are made in the installed collector."""
    collector = next(
        (CHECKOUT.runtime / "lib").glob("python3*/site-packages/sglang/srt/observability/metrics_collector.py")
    )
    made = collector.read_text()
    names = set(re.findall(r'"(sglang:\w+)"', (PAGE.parent / "prometheus.py").read_text()))
    assert len(names) >= 7 and not [name for name in names if f'"{name}"' not in made]


def test_samples():
    assert parse('a_total{x="1",y="b}c"} 2e3 1700000000\n\n# c\nb NaN\n')[0] == (
        "a_total",
        {"x": "1", "y": "b}c"},
        2000.0,
    )
    for bad in ("<html>", "a{b} x", "a one"):
        with pytest.raises(ValueError, match="not a Prometheus sample"):
            parse(bad)


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def collector(texts):
    """Answers /metrics with each text in turn, the last one for ever."""
    left = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


def test_the_page_and_its_samples():
    with collector([BEFORE]) as source, serving(make_server(source)) as page:
        assert httpx.get(page).content == PAGE.read_bytes()
        assert httpx.get(f"{page}/sample").json()["restored_storage"] == 1300.0
        assert httpx.get(f"{page}/../../etc/passwd").status_code == 404
    with serving(make_server("http://127.0.0.1:9")) as page:
        answer = httpx.get(f"{page}/sample")
        assert answer.status_code == 502 and "--enable-metrics" in answer.json()["error"]
    with collector(["<html>"]) as source, serving(make_server(source)) as page:
        assert httpx.get(f"{page}/sample").status_code == 502


def browser() -> str:
    names = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on PATH: the page was not opened in a browser")
    return found


def opened(url: str) -> str:
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=6000",
        "--dump-dom",
        url,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def outputs(dom: str) -> dict[str, str]:
    return dict(re.findall(r'<output id="(\w+)">([^<]*)</output>', dom))


def test_in_a_browser_the_numbers_appear_and_lines_grow():
    with collector([BEFORE, AFTER]) as source, serving(make_server(source)) as page:
        dom = opened(f"{page}/?every=1")
    shown = outputs(dom)
    assert shown["proposed"] == "4" and shown["draft_rows"] == "8"
    assert shown["accept_length"] == "3.25" and shown["restored_storage"] == "1,300" and shown["recomputed"] == "3,000"
    assert int(re.search(r"sample (\d+)", dom)[1]) >= 2
    assert max(points.count(",") for points in re.findall(r'points="([^"]*)"', dom)) >= 2


def test_in_a_browser_a_missing_server_is_said():
    with serving(make_server("http://127.0.0.1:9")) as page:
        dom = opened(f"{page}/?every=1")
    assert "no sample: http://127.0.0.1:9/metrics" in dom and "…" in set(outputs(dom).values())


def test_sources_are_printed_once_with_their_shares():
    from typer.testing import CliRunner

    from sm120.integration.cli import app

    with collector([BEFORE]) as url:
        done = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["metrics", "--once", "--url", url])
    shown = {
        line.split("│")[1].strip(): line.split("│")[2:4] for line in done.output.splitlines() if line.startswith("│")
    }
    assert done.exit_code == 0
    assert {name: [cell.strip() for cell in cells] for name, cells in shown.items()} == {
        "GPU": ["700", "14.0%"],
        "host": ["0", "0.0%"],
        "storage": ["1,300", "26.0%"],
        "computed": ["3,000", "60.0%"],
    }
