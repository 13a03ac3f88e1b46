"""The same thing is missing, and every command that needs it says so alike: one line, its code, its fix, exit code 2.

Two commands ask for a thing in order to say whether it is there; their no is an answer, which ends with 1 or is a row.
"""

from __future__ import annotations

import hashlib
import re
import sys

import pytest

from sm120.integration import cli

from .runtime_records import written

FIELDS = (
    *("dtype=bfloat16", "page_size=64", "hicache_mem_layout=page_first_direct", "prefill_attention_backend=triton"),
    *("decode_attention_backend=triton", "torch_version=2.14.1", "capability=12.0"),
)
DERIVE = "namespace derive --root pages --dry-run " + " ".join(f"--field {one}" for one in FIELDS)
NEED_A_RUNTIME = [
    "prove",
    "prove --runtime build/runtime --speculation",
    "prove-persistence --model dense",
    "faults",
    "bench persistence --no-fio",
    "probe first-change",
    "closure first-change --prove",
    "export first-change --mbox out",
    "matrix --probes",
    f"{DERIVE} --model model --runtime build/runtime/runtime.json",
]
NEED = {
    "namespace-checkpoint": [
        f"{DERIVE} --model nothing --runtime record/runtime.json",
        f"{DERIVE} --model model --draft nothing --runtime record/runtime.json",
    ],
    "plan-model": ["plan flash-next --weights 70GiB --model nothing"],
    "plan-weights": ["plan flash-next"],
    "tree-missing": ["series apply alpha nothing"],
    "workspace-missing": ["series save alpha nothing"],
    "namespace-root": ["namespace list --root nothing", "namespace du --root nothing", "namespace gc --root nothing"],
    "qualify-endpoint": ["qualify --url http://127.0.0.1:1 --folder runs", "prefix --url http://127.0.0.1:1"],
    "metrics-source": ["metrics --url http://127.0.0.1:1 --once"],
    "startup-url": ["assert-startup cpu-proof --url http://127.0.0.1:1"],
    "startup-log": ["assert-startup cpu-proof --log nothing"],
    "result-schema": ["compare nothing nothing"],
    "profile-unknown": ["serve nothing", "plan nothing", "assert-startup nothing --log prompt"],
    "unknown-slug": ["probe nothing", "closure nothing", "export nothing --mbox out"],
    "unknown-project": ["matrix nothing", "bump nothing 1.0"],
    "pin-missing": ["series lint nothing", "series refresh nothing", "series quilt nothing out"],
}


@pytest.fixture
def said(mini, monkeypatch, capsys):
    """Run a command line in a checkout that was never built: (exit code, standard error, all that it printed)."""
    mini.patch("first-change", {"alpha/core.py": "line_0 = 0\n"})
    root = mini.checkout.root
    probe = root / "tests" / "probes" / "alpha" / "test_first_change.py"
    probe.parent.mkdir(parents=True)
    probe.write_text("def test_change():\n    assert True\n")
    wheel = next(mini.releases.glob("*.whl"))
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = f'[[releases]]\nversion = "1.0"\nfile = "{wheel.name}"\nsha256 = "{sha256}"\n'
    (mini.folder / "releases.toml").write_text(entry)
    written(root / "record")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text("{}")
    (root / "model" / "m.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name, value in mini.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("SM120_RUNTIME", "SM120_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SM120_CONFIG", str(root / "none"))
    monkeypatch.chdir(root)
    (root / "prompt").write_text("a prompt")

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sm120", *line.split()])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code, printed.err, printed.out + printed.err

    return run


def only_refusal(code: int, error: str) -> str:
    """The refusal on standard error, after what was said to go on: two lines with their code and their fix."""
    lines = error.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    assert code == 2 and re.match(r"error: \[[a-z-]+\] \S", lines[at]), error
    assert len(lines) - at <= 2 and all(line.startswith("  fix: ") for line in lines[at + 1 :]), error
    return "\n".join(lines[at:])


@pytest.mark.parametrize("line", NEED_A_RUNTIME)
def test_without_a_runtime(said, mini, line):
    place = "build/runtime" if line.startswith("namespace") else mini.checkout.runtime
    wanted = f"error: [runtime-missing] {place}: no runtime is installed there\n  fix: make runtime"
    assert only_refusal(*said(line)[:2]) == wanted


@pytest.mark.parametrize(("code", "line"), [(code, line) for code, lines in NEED.items() for line in lines])
def test_without_what_a_command_needs(said, code, line):
    assert f"error: [{code}] " in only_refusal(*said(line)[:2])


def test_who_asks_whether_there_is_one_is_answered(said):
    """`doctor` lists what is missing; the preflight of `serve` is a check that says no."""
    code, _, printed = said("doctor")
    assert code == 0 and "missing for SM120: an installed runtime: make runtime" in printed
    code, _, printed = said("serve cpu-proof")
    assert code == 1 and "verdict: not ready (runtime" in printed
