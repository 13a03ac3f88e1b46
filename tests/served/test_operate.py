"""What an operator does first on a machine without a GPU: serve, check the start, qualify, watch."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from sm120.integration.checkout import find_checkout
from sm120.integration.metrics.prometheus import parse, view
from sm120.integration.profiles import load_profile
from sm120.integration.prove.server import free_port
from sm120.integration.qualify.endpoint import Endpoint
from sm120.integration.qualify.report import write_report
from sm120.integration.qualify.run import Plan, qualify
from sm120.integration.results.record import Conditions
from sm120.integration.startup import assert_startup
from sm120.integration.startup.cli import server_info

PLAN = Plan((1500, 3000), 2000, 300, 24, (1, 4), (1500,), (0.5,), 2)
MAIN = "from sm120.integration.cli import main; main()"


@contextlib.contextmanager
def served(folder):
    """`sm120 serve cpu-proof` with its storage in `folder`; yields address and log."""
    port, log = free_port(), folder / "serve.log"
    command = [sys.executable, "-c", MAIN, "serve", "cpu-proof", "--port", str(port)]
    command += ["--set", f"paths.storage={folder / 'pages'}"]
    environment = {**os.environ, "SM120_CONFIG": str(folder)}
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
        endpoint = Endpoint(url, tmp_path / "requests.jsonl")
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
        assert write_report(result, tmp_path).is_file() and (tmp_path / "restore.png").is_file()

        samples = parse(httpx.get(f"{url}/metrics", follow_redirects=True).text)
        shown = view(samples, None, 0.0)
        assert shown["restored_storage"] >= found["storage restore"].restored_tokens
        assert shown["device_tokens"] > 0 and shown["recomputed"] > 0
