"""What an operator does first on a machine without a GPU: serve, check the start, qualify, watch."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict

import httpx
import pytest

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.server_command import free_port
from sm120.integration.measure.effort import LEVELS
from sm120.integration.measure.endpoint import Endpoint
from sm120.integration.measure.qualify import qualify
from sm120.integration.measure.report import write_report
from sm120.integration.measure.requests import PLANS, Plan
from sm120.integration.measure.result import UNITS, Conditions
from sm120.integration.serve.metrics.prometheus import parse, view
from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.startup import assert_startup
from sm120.integration.serve.startup.startup_commands import server_info

PLAN = Plan((1500, 3000), 2000, 300, 24, (1, 4), (1500,), (0.5,), 2, ("default", "high"), 32, pictures=1)
MAIN = "from sm120.integration.cli import main; main()"


@contextlib.contextmanager
def served(folder):
    """`sm120 serve cpu-proof` with its storage in `folder`; yields address and log."""
    port, log = free_port(), folder / "serve.log"
    command = [sys.executable, "-c", MAIN, "serve", "cpu-proof", "--port", str(port)]
    command += ["--set", f"paths.storage={folder / 'pages'}"]
    # As on an operator's machine: each process of the server is spawned.
    environment = {**os.environ, "SM120_CONFIG": str(folder), "PROOF_FORK": "0"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, cwd=find_checkout().root, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200:
                    break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", log
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.mark.served
@pytest.mark.timeout(600)
def test_serve_assert_qualify_watch(tmp_path):
    with served(tmp_path) as (url, log):
        rows = assert_startup(load_profile("cpu-proof"), log.read_text(), server_info(url))
        assert {row.verdict for row in rows} == {"ok"}, rows
        wrong = assert_startup(load_profile("cpu-proof", ["max-total-tokens=8192"]), log.read_text())
        assert wrong[0].verdict == "DIFFERENT"

        conditions = Conditions(device="CPU", model="tiny", runtime="here")
        endpoint = Endpoint(url, tmp_path / "requests.jsonl", random_weights=True)
        result = qualify(endpoint, PLAN, tmp_path, name="served", conditions=conditions)
        found = {one.kind: one for one in result.measurements}
        for kind in (
            "cold prefill",
            "radix reuse",
            "storage restore",
            "concurrent storage restore",
            "decode per stream",
            "decode makespan",
        ):
            assert found[kind].refused is None, (kind, found[kind].refused)
        assert found["storage restore"].restored_tokens > 1500
        # Random weights find nothing; what counts is that they were asked and scored.
        assert found["needles"].value == 0
        # They never end an answer either, their template has no switch for effort, and they take no images.
        for one in result.measurements:
            if one.effort:
                assert one.value is None and "cut off at 32 tokens" in one.refused
                assert ("shows no switch" in one.refused) is (one.effort == "high")
            if one.kind.startswith("vision"):
                assert one.outcome == "not supported" and "the model takes no images" in one.refused
        assert write_report(result, tmp_path).is_file() and (tmp_path / "restore.png").is_file()

        samples = parse(httpx.get(f"{url}/metrics", follow_redirects=True).text)
        shown = view(samples, None, 0.0)
        assert shown["restored_storage"] >= found["storage restore"].restored_tokens
        assert shown["device_tokens"] > 0 and shown["recomputed"] > 0


@pytest.mark.served
@pytest.mark.long
@pytest.mark.timeout(900)
def test_plan_full_ends_in_a_report_of_a_tiny_model(tmp_path):
    with served(tmp_path) as (url, _):
        endpoint = Endpoint(url, tmp_path / "requests.jsonl", random_weights=True)
        conditions = Conditions(device="CPU", model="tiny", runtime="here")
        result = qualify(endpoint, PLANS["full"], tmp_path, name="full", conditions=conditions, context=2048)
    assert "2,048 tokens a request" in result.conditions.note and "2200000 became" in result.conditions.note
    found = defaultdict(list)
    for one in result.measurements:
        found[one.kind].append(one)
    assert set(found) == {kind for kind in UNITS if kind != "token pool"}
    for kind in ("cold prefill", "radix reuse", "storage restore", "decode per stream", "trace makespan", "needles"):
        assert [one.refused for one in found[kind] if one.value is None] == [], kind
    assert max(one.context_tokens for one in found["cold prefill"]) > 1600
    assert {one.effort for one in found["reasoning score"]} == set(LEVELS)
    assert {one.outcome for one in found["vision positions exact"]} == {"not supported"}
    assert {one.concurrency for one in found["trace makespan"]} == {1, 4}
    assert {one.context_band for one in found["trace decode in band"]} == {(0, 1024), (1024, 4096)}
    report = write_report(result, tmp_path).read_text()
    assert {path.stem for path in tmp_path.glob("*.png")} == {"prefill", "restore", "decode", "trace"}
    assert "the model takes no images" in report and "shows no switch for it" in report
