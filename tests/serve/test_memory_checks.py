"""`sm120 serve PROFILE --print` on machines that are not here: which say yes, which say no, and to what."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sm120.integration.cli import app
from sm120.integration.common.gpus import QUERY, Gpu
from sm120.integration.serve import preflight
from sm120.integration.serve.memory_checks import assumed_weights, wsl2
from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.server_arguments import Machine

_SPEC = importlib.util.spec_from_file_location("checkpoint_folders", Path(__file__).with_name("checkpoint_folders.py"))
folders = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(folders)

CARD = Gpu("0", "GPU-aa", "RTX PRO 6000", "12.0", "595.84", "97887 MiB", "97250 MiB")
BUSY = CARD._replace(free="36447 MiB")
SECOND = CARD._replace(number="1", uuid="GPU-bb")
RTX_5090 = Gpu("0", "GPU-cc", "RTX 5090", "12.0", "595.84", "32607 MiB", "32100 MiB")
WSL2 = "6.18.33.2-microsoft-standard-WSL2"


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def answer_as(monkeypatch, memory_gb=256.0, release="6.1.0-generic"):
    """Let the kernel's files say so much available memory and this release, and no control group's limit."""
    real = Path.read_text
    told = {
        "/proc/meminfo": f"MemTotal: {2 * memory_gb} kB\nMemAvailable: {int(memory_gb * 1e9 / 1024)} kB\n",
        "/proc/sys/kernel/osrelease": release + "\n",
        "/sys/fs/cgroup/memory.max": "max\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **k: told.get(str(path)) or real(path, *a, **k))


def verdicts(tmp_path, monkeypatch, name, *settings, gpus=(CARD,), memory_gb=256.0, release="6.1.0-generic"):
    """Each check of a profile with checkpoints of the real sizes, on a machine that says this of itself."""
    answer_as(monkeypatch, memory_gb, release)
    if name == "flash-next":
        paths = [f"paths.model={folders.flash_next(tmp_path / 'model')}"]
    else:
        paths = [
            f"paths.model={folders.qwen_27b(tmp_path / 'model')}",
            f"paths.draft={folders.dflash2(tmp_path / 'd')}",
        ]
    profile = load_profile(name, [*paths, *settings])
    found = preflight.preflight(
        profile, runtime=tmp_path, storage=tmp_path, gpus=list(gpus), machine=Machine(True, True)
    )
    return {check.name: check for check in found}


ABOUT = ("device", "GPU memory", "full request", "memory", "WSL2")


@pytest.mark.parametrize(
    ("name", "settings", "machine", "no"),
    [
        ("flash-next", [], {}, set()),
        ("flash-next", [], {"gpus": (BUSY,)}, {"GPU memory", "full request"}),
        ("flash-next", [], {"gpus": (RTX_5090,)}, {"GPU memory", "full request"}),
        ("flash-next", [], {"memory_gb": 64}, {"memory"}),
        ("flash-next", [], {"memory_gb": 128}, set()),
        ("flash-next", ["hicache-size=96"], {"memory_gb": 128}, {"memory"}),
        ("flash-next", ["ple-offload-embedding=false"], {"memory_gb": 128}, {"full request"}),
        ("flash-next", ["context-length=900000"], {}, {"full request"}),
        ("flash-next", ["mem-fraction-static=0.796"], {}, {"full request"}),
        ("qwen38-27b-dflash2", [], {}, set()),
        ("qwen38-27b-dflash2", [], {"memory_gb": 128}, {"memory"}),
        ("qwen38-27b-dflash2", ["hicache-size=64"], {"memory_gb": 128}, set()),
        ("qwen38-27b-dflash2", ["hicache-size=400"], {"memory_gb": 256}, {"memory"}),
        ("qwen38-27b-dflash2", [], {"gpus": (BUSY,)}, {"GPU memory", "full request"}),
        ("qwen38-27b-dflash2", [], {"release": WSL2}, {"WSL2"}),
        ("qwen38-27b-dflash2", ["enable-hierarchical-cache=false"], {"release": WSL2}, set()),
        ("flash-next", ["tp-size=2"], {}, {"device"}),
        ("flash-next", ["tp-size=2"], {"gpus": (CARD, SECOND)}, set()),
        (
            "flash-next",
            ["tp-size=2"],
            {"gpus": (CARD, SECOND._replace(free="9000 MiB"))},
            {"GPU memory", "full request"},
        ),
        ("flash-next", ["tp-size=2"], {"gpus": (CARD, SECOND._replace(capability="12.1"))}, {"device"}),
    ],
)
def test_what_says_no(tmp_path, monkeypatch, name, settings, machine, no):
    found = verdicts(tmp_path, monkeypatch, name, *settings, **machine)
    assert {check for check in ABOUT if check in found and found[check].ok is not True} == no
    for check in no - {"device", "GPU memory"}:
        assert found[check].fix


def test_the_table_on_the_host_is_part_of_what_it_needs(tmp_path, monkeypatch):
    on_host = verdicts(tmp_path, monkeypatch, "flash-next")["memory"]
    assert "n-gram table 51.2" in on_host.need and on_host.need.startswith("106.")
    other = folders.flash_next(tmp_path / "bf16", table_dtype="BF16")
    profile = load_profile("flash-next", [f"paths.model={other}"])
    assert "n-gram table 102.4" in preflight._memory(profile).need


def test_shipped_needs_are_what_the_settings_come_to():
    for name in ("flash-next", "flash-next-two-cards", "qwen38-27b-dflash2"):
        profile = load_profile(name)
        needed = float(preflight._memory(profile).need.split()[0])
        assert 0 <= profile.needs.memory_gb - needed < 2
    assert assumed_weights(load_profile("flash-next")).host == 51_200_000_000


def test_a_kernel_that_is_not_wsl2_has_no_such_row(monkeypatch):
    profile = load_profile("flash-next")
    monkeypatch.setattr(Path, "read_text", lambda path: "6.1.0-44-amd64\n")
    assert wsl2(profile) is None


def fake_nvidia_smi(folder, gpus):
    """A driver's tool that answers for `gpus`, one line each, in the order of the columns that it is asked for."""
    answers = [dict(zip(QUERY.split(","), gpu, strict=True)) for gpu in gpus]
    tool = folder / "nvidia-smi"
    tool.write_text(
        # As pip writes it: no kernel reads a #! line with a space in its path. sh runs the second line, Python skips it.
        f"#!/bin/sh\n''''exec '{sys.executable}' \"$0\" \"$@\" # '''\n"
        f"import json, sys\nanswers = json.loads({json.dumps(json.dumps(answers))})\n"
        "names = next(word for word in sys.argv if word.startswith('--query-gpu=')).split('=')[1].split(',')\n"
        "print('\\n'.join(', '.join(answer[name] for name in names) for answer in answers))\n"
    )
    tool.chmod(0o755)


JUDGED = {*ABOUT, "CUDA compiler"}  # the machine's storage and the runtime are this one's own


@pytest.mark.parametrize(
    ("machine", "settings", "no", "said"),
    [
        ({}, [], set(), ""),
        ({"toolkit": None}, [], {"CUDA compiler"}, "no bin/nvcc that runs"),
        ({"toolkit": "12.6"}, [], {"CUDA compiler"}, "nvcc is 12.6"),
        ({"gpus": [BUSY]}, [], {"GPU memory", "full request"}, "35.6 GiB free of 95.6"),
        ({"gpus": [RTX_5090]}, [], {"GPU memory", "full request"}, "RTX 5090"),
        ({"gpus": [CARD, SECOND]}, ["tp-size=2"], set(), "GPU 1: RTX PRO 6000"),
        ({"gpus": [CARD]}, ["tp-size=2"], {"device"}, "no GPU 1"),
        ({"memory_gb": 64}, [], {"memory"}, ""),
        ({"memory_gb": 128}, [], set(), ""),
        ({"memory_gb": 256}, [], set(), ""),
        ({"release": WSL2}, [], {"WSL2"}, "WSL2"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) and len(value) == 1 else None,
)
def test_print_says_yes_or_no(tmp_path, monkeypatch, toolkit, machine, settings, no, said):
    fake_nvidia_smi(tmp_path, machine.get("gpus", [CARD]))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    release = machine.get("toolkit", "13.0")
    home = toolkit(tmp_path / "cuda", release) if release else tmp_path / "nothing here"
    monkeypatch.setenv("CUDA_HOME", str(home))
    answer_as(monkeypatch, **{name: machine[name] for name in ("memory_gb", "release") if name in machine})
    folder = folders.flash_next(tmp_path / "model")
    words = [f"paths.model={folder}", f"paths.storage={tmp_path}", *settings]
    line = ["serve", "flash-next", "--print", *(part for word in words for part in ("--set", word))]
    done = CliRunner().invoke(app, line, env={"COLUMNS": "1000"})  # a row of the table is one line
    assert said in done.output
    verdict = done.output.split("verdict: ")[1].strip()
    bad = set() if verdict == "ready" else set(verdict.removeprefix("not ready (").rstrip(")").split(", "))
    assert bad & JUDGED == no, done.output
    assert done.exit_code == bool(bad)
