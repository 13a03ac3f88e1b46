"""One server as a child process, without sglang: fake servers that die, hang, refuse to stop, or answer."""

import os
import sys
import time
from pathlib import Path

import pytest

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.server_command import command_line, free_port
from sm120.integration.prove.server import Server, ServerFailed

from ..runtime_records import written

ANSWERING = """
import argparse, http.server, json, os, signal, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--children", type=int, default=0)
options, _ = parser.parse_known_args()
for _ in range(options.children):
    # A worker that does not listen to SIGTERM, as a scheduler in the middle of a kernel does not.
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, code, body):
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer(200, {"path": self.path}) if self.path == "/health" else self.answer(500, "no such thing")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        details = {"device": 3, "host": 0}
        meta = {"completion_tokens": 6, "spec_verify_ct": 2, "cached_tokens_details": details}
        self.answer(200, [{"output_ids": ids[::-1], "meta_info": meta} for ids in asked["input_ids"]])

print("listening", options.port, flush=True)
http.server.HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
"""
DYING = "import sys\nfor i in range(100): print('line', i)\nprint('out of luck')\nsys.exit(3)\n"
HANGING = "import time\nprint('thinking', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def fake(tmp_path: Path):
    """Make a Server that runs the given text instead of sglang."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    runtime = Runtime(tmp_path, (tmp_path,))

    def server(text: str, **options) -> Server:
        (tmp_path / "fake_server.py").write_text(text)
        arguments = options.pop("arguments", {})
        return Server(runtime, tmp_path, arguments, log=tmp_path / "log", module="fake_server", **options)

    return server


def processes_of(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def test_death_at_start_gives_the_tail_of_the_log(fake) -> None:
    with pytest.raises(ServerFailed, match=r"ended with code 3 before it was healthy") as failed:
        fake(DYING).start()
    (tail,) = failed.value.__notes__
    assert "before it was healthy: out of luck" in failed.value.what and failed.value.code == "server-failed"
    assert tail.endswith("out of luck") and "line 62" in tail and "line 5\n" not in tail


def test_a_server_that_never_becomes_healthy_is_stopped(fake, tmp_path) -> None:
    server = fake(HANGING, start_timeout=3)
    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"not healthy after 3 s[\s\S]*thinking"):
        server.start()
    assert time.monotonic() - began < 30
    with pytest.raises(ServerFailed, match="not running"):
        _ = server.pid
    own = str(tmp_path).encode()  # other tests may run servers of this kind at the same time
    assert not [p for p in Path("/proc").iterdir() if p.name.isdigit() and own in _command(p)]


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_ends_with_every_process_of_its_group(fake, end: str) -> None:
    server = fake(ANSWERING, arguments={"children": 2}).start()
    group = server.pid
    assert len(processes_of(group)) == 3
    assert server.memory_bytes() > 1e6
    # stop() must end what ignores its SIGTERM, too.
    server.stop(timeout=5) if end == "stop" else server.kill()
    assert processes_of(group) == []


def test_runs_in_a_group_of_its_own(fake) -> None:
    with fake(ANSWERING) as server:
        assert os.getpgid(server.pid) == server.pid != os.getpgid(0)


def test_reply_tells_tokens_tiers_and_acceptance(fake) -> None:
    with fake(ANSWERING) as server:
        first, second = server.generate_batch([[1, 2, 3], [4]], 6)
    assert first.tokens == (3, 2, 1) and second.tokens == (4,)
    assert (first.cached("device"), first.cached("host"), first.cached("storage")) == (3, 0, 0)
    assert first.accept_length == 3


def test_an_error_answer_names_the_call_and_the_log(fake) -> None:
    with fake(ANSWERING) as server, pytest.raises(ServerFailed, match=r"GET /nothing: 500[\s\S]*listening"):
        server.request("GET", "/nothing")


def test_a_server_that_goes_away_names_the_call(fake) -> None:
    server = fake(ANSWERING).start()
    server.kill()
    with pytest.raises(ServerFailed, match=r"POST /generate: ConnectError"):
        server.generate([1], 1)


def test_command_line() -> None:
    arguments = {"page_size": 16, "x": True, "y": None, "z": False, "many": [1, 2], "ratio": 0.5}
    assert command_line(arguments) == ["--page-size", "16", "--x", "--many", "1", "2", "--ratio", "0.5"]


def test_free_ports_can_be_bound() -> None:
    assert 1024 < free_port() < 65536


def test_a_folder_without_python_is_no_runtime(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"(?s)\[runtime-missing\].*no runtime is installed there.*fix: make runtime"):
        Runtime(tmp_path)


def test_a_proof_finds_the_programs_that_bin_serve_finds(tmp_path: Path) -> None:
    """SGLang compiles its page hashes with ninja: without it nothing comes back from storage."""
    home = tmp_path / "runtimes" / "cpu-1"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").touch()
    written(home, deps="cpu-2")
    path = Runtime(home).environment()["PATH"].split(os.pathsep)
    assert path[:2] == [str(home / "bin"), str(tmp_path / "deps" / "cpu-2" / "bin")]
    (home / "runtime.json").unlink()
    assert Runtime(home).environment()["PATH"].split(os.pathsep)[0] == str(home / "bin")
