"""A bad input is a message and exit code 2, never a traceback: that ends with 1, as a check does that said no."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration import cli
from sm120.integration.build import runtime, wheels
from sm120.integration.build.installed_runtime import Runtime, ScriptFailed
from sm120.integration.common.refusal import Refusal
from sm120.integration.prove import served_proof as prove
from sm120.integration.prove.server import ServerFailed
from sm120.integration.series.apply import apply_patch
from sm120.integration.series.patch_file import parse_patch
from sm120.integration.series.pin import load_pin

PLAN = ["plan", "flash-next", "--weights", "70GiB"]
INPUTS = [
    ([*PLAN, "--set", "mem-fraction-static=abc"], 2, "[plan-settings] mem-fraction-static is 'abc'"),
    ([*PLAN, "--set", "mem-fraction-static=[1]"], 2, "[plan-settings] mem-fraction-static is [1]"),
    ([*PLAN, "--set", "page-size=2"], 2, "[plan-settings] page_size is 2, needs a multiple of the index ratio"),
    ([*PLAN, "--set", "page-size=inf"], 2, "[plan-settings] page-size is inf"),
    ([*PLAN, "--set", "hicache-size=abc"], 2, "[plan-settings] hicache-size is 'abc'"),
    ([*PLAN, "--set", "context-length=abc"], 2, "[plan-settings] context-length is 'abc'"),
    ([*PLAN, "--set", "max-running-requests=abc"], 2, "[plan-settings] max-running-requests is 'abc'"),
    ([*PLAN, "--gpu-mem", "1e400"], 2, "[plan-size] '1e400'"),
    ([*PLAN, "--model", "{list}"], 2, "[plan-model]"),
    (["plan", "flash-next", "--weights", "1e400"], 2, "[plan-size] '1e400'"),
    (["series", "save", "sglang", "/nonexistent"], 2, "[workspace-missing] /nonexistent"),
    (["series", "save", "nonexistent", "{folder}"], 2, "[pin-missing]"),
    (["series", "edit", "sglang", "{text}"], 2, "[workspace-exists] {text}"),
    (["serve", "flash-next", "--print", "--set", "paths.storage={text}/x"], 1, "model, storage"),
    (["serve", "flash-next", "--print", "--set", "rope.target.factor=abc"], 2, "[profile-setting] rope"),
    (["serve", "flash-next", "--print", "--set", "paths.model={folder}"], 2, "[profile-checkpoint]"),
    (["serve", "flash-next", "--print", "--port", "99999"], 2, "--port"),
    (["assert-startup", "cpu-proof", "--url", "http://[::1"], 2, "[startup-url] http://[::1"),
    (["assert-startup", "flash-next", "--log", "{text}", "--set", "page-size=2"], 2, "[plan-settings] page_size is 2"),
    (["qualify", "--url", "http://[::1", "--folder", "{folder}/runs"], 2, "[qualify-endpoint] 'http://[::1'"),
    (["compare", "{bytes}", "{bytes}"], 2, "[result-schema]"),
    (["metrics", "--port", "99999"], 2, "--port"),
    (["results", "--plots", "{text}"], 2, "[os-error] {text}"),
]


@pytest.fixture
def places(tmp_path):
    """What INPUTS name: code under test that is wrong, run as root, writes to nothing of the machine's own."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{")
    (tmp_path / "list").write_text("[]")
    (tmp_path / "text").write_text("a server's log\n")
    (tmp_path / "config.json").write_text("[]")
    return {name: str(tmp_path / name) for name in ("bytes", "list", "text")} | {"folder": str(tmp_path)}


@pytest.fixture
def command(monkeypatch, capsys, tmp_path, places):
    """Run a command line in this process: (exit code, everything that it printed)."""
    monkeypatch.delenv("SM120_DEBUG", raising=False)
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path / "none"))

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sm120", *(argument.format(**places) for argument in arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return run


@pytest.mark.parametrize(("arguments", "code", "says"), INPUTS, ids=lambda value: str(value)[:60])
def test_a_bad_input_is_refused_by_name(command, places, arguments, code, says):
    found, printed = command(*arguments)
    assert says.format(**places) in printed and "Traceback" not in printed
    assert found == code, printed
    assert Path(places["text"]).read_text() == "a server's log\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "[disk-full] /x: "),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "[os-error] /x: Permission denied"),
        (OSError("no number"), "[os-error] no number"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "[text-encoding] "),
    ],
    ids=["full-disk", "no-access", "without-a-number", "not-text"],
)
def test_what_the_machine_refuses_is_a_message(command, monkeypatch, error, says):
    def fail():
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert (lambda code, text: (code, says in text))(*command("doctor")) == (2, True)


@pytest.fixture
def broken_proof(monkeypatch):
    """Let the proof of a new runtime raise what the test says."""

    def breaks(error: Exception) -> None:
        def fail(*arguments, **options):
            raise error

        monkeypatch.setattr(prove, "prove", fail)
        monkeypatch.setattr(runtime, "build_runtime", lambda checkout, flavor, report, proof: proof(Path(), Path()))

    return breaks


@pytest.mark.parametrize(
    "error",
    [
        ServerFailed("the server is not running"),
        ScriptFailed(Path("make_model.py"), "failed", "its last words"),
        subprocess.TimeoutExpired("python", 300),
        PermissionError(errno.EACCES, "Permission denied", "/x"),
    ],
    ids=str,
)
@pytest.mark.parametrize("debug", ["", "1"], ids=["as-it-is", "debug"])
def test_a_proof_that_breaks_is_a_proof_that_failed(command, broken_proof, monkeypatch, error, debug):
    monkeypatch.setenv("SM120_DEBUG", debug)
    broken_proof(error)
    code, printed = command("runtime", "--prove")
    assert code == 2 and "error: [proof-failed]" in printed and getattr(error, "what", str(error)) in printed
    # What it was raised from, and where, is what a report needs.
    assert (f"{type(error).__name__}: " in printed and "in fail" in printed) is ("Traceback" in printed) is bool(debug)


def test_a_disk_that_fills_up_during_a_proof_is_called_so(command, broken_proof):
    broken_proof(OSError(errno.ENOSPC, "No space left on device", "/x"))
    assert "[disk-full] /x" in command("runtime", "--prove")[1]


@pytest.mark.parametrize("error", [RuntimeError("dictionary changed size"), ValueError("not enough values")], ids=str)
def test_a_mistake_of_ours_is_no_proof_that_failed(broken_proof, monkeypatch, error):
    broken_proof(error)
    monkeypatch.setattr(sys, "argv", ["sm120", "runtime", "--prove"])
    with pytest.raises(type(error), match=str(error)):
        cli.main()


def test_a_script_of_the_proof_that_hangs_is_named(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    with pytest.raises(Refusal, match=r"make_model\.py did not end within"):
        Runtime(tmp_path).run_script(Path("make_model.py"), timeout=0.2)


PIN = Path(__file__).parent.parent / "patches" / "sglang"
FULL = "OSError: [Errno 28] No space left on device\n"


def full(command: list[str], text: bool = False, **options) -> subprocess.CompletedProcess:
    """Any program on a disk that is full."""
    return subprocess.CompletedProcess(command, 1, "" if text else b"", FULL if text else FULL.encode())


def test_a_disk_that_fills_up_is_called_so_by_every_step(monkeypatch, tmp_path):
    """While a wheel is packed, a patch applied, an environment made: each has its own word for what else goes wrong."""
    pin = load_pin(PIN)
    info = tmp_path / "tree" / f"{pin.distribution}-{pin.version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Version: {pin.version}\n")
    monkeypatch.setattr(subprocess, "run", full)
    for work in (
        lambda: wheels.repack(tmp_path / "tree", pin, "local", tmp_path / "wheel"),
        lambda: apply_patch(tmp_path, parse_patch(next(PIN.glob("*.patch")))),
        lambda: runtime._make_venv(tmp_path / "home"),
    ):
        with pytest.raises(Refusal, match=r"\[disk-full\]"):
            work()
