"""What a runtime's launcher gives to what it starts: a toolkit that fits, caches of its own, jobs that fit the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120.integration.build import launcher

GB = 10**9


@pytest.fixture
def layer(tmp_path: Path, toolkit) -> Path:
    toolkit(tmp_path / "deps" / "cuda-1" / "toolkit")
    return tmp_path / "deps" / "cuda-1"


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        ({}, None),
        ({"compiler": "12.6"}, "nvcc is 12.6, torch's CUDA is 13.0"),
        ({"compiler": "13.5", "headers": "13.0"}, "its headers are 13.0, its nvcc 13.5"),
        ({"compiler": "13.0", "headers": "13.5"}, "its headers are 13.5, its nvcc 13.0"),
        ({"without": ("bin/nvcc",)}, "no bin/nvcc that runs"),
        ({"without": ("include/cuda.h",)}, "no include/cuda.h"),
        ({"without": ("include/curand_kernel.h",)}, "no include/curand_kernel.h"),
        ({"without": ("lib64/libcudart.so",)}, "no lib64/libcudart.so"),
        ({"without": ("lib64/stubs/libcuda.so",)}, "no lib64/stubs/libcuda.so"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_makes_a_toolkit_unusable(tmp_path: Path, made: dict, wrong: str | None, toolkit) -> None:
    found = launcher.inspect(toolkit(tmp_path / "cuda", **made))
    assert (wrong in found.wrong) if wrong else found.wrong == ()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "no bin/nvcc that runs" in launcher.inspect(tmp_path / "nothing").wrong


def test_the_user_s_own_is_taken_where_it_fits(tmp_path: Path, layer: Path, toolkit) -> None:
    own = toolkit(tmp_path / "own")
    assert launcher.choose_toolkit({"CUDA_HOME": str(own), "PATH": ""}, layer) == (launcher.inspect(own), None)
    assert launcher.choose_toolkit({"CUDA_PATH": str(own), "PATH": ""}, layer)[0].home == own
    assert launcher.choose_toolkit({"PATH": str(own / "bin")}, layer)[0].home == own


def test_the_runtime_s_is_taken_where_the_user_s_does_not_fit(tmp_path: Path, layer: Path, toolkit) -> None:
    old = toolkit(tmp_path / "old", "12.6")
    chosen, passed = launcher.choose_toolkit({"CUDA_HOME": str(old), "PATH": ""}, layer)
    assert (chosen.home, chosen.wrong, passed.home) == (layer / "toolkit", (), old)


def test_without_a_layer_the_user_s_is_judged(tmp_path: Path, toolkit) -> None:
    old = toolkit(tmp_path / "old", "12.6")
    chosen, _ = launcher.choose_toolkit({"CUDA_HOME": str(old), "PATH": ""}, None)
    assert chosen.home == old and chosen.wrong


@pytest.mark.parametrize(
    ("environment", "available", "cores", "reserved", "expected"),
    [
        ({}, 128 * GB, 16, 0, 14),
        ({}, 128 * GB, 8, 0, 8),
        ({}, 128 * GB, 16, 96 * GB, 3),
        ({}, 24 * GB, 2, 0, 2),
        ({}, 12 * GB, 16, 0, 1),
        ({}, 64 * GB, 16, 96 * GB, 1),
        ({"MAX_JOBS": "12"}, 12 * GB, 2, 0, 12),
        ({"MAX_JOBS": "0"}, 128 * GB, 2, 0, 2),
        ({"MAX_JOBS": "many"}, 128 * GB, 2, 0, 2),
    ],
)
def test_jobs(environment: dict, available: int, cores: int, reserved: int, expected: int) -> None:
    assert launcher.jobs(environment, available, cores, reserved) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--hicache-size", "96"], 96 * GB),
        (["--hicache-size=1.5"], 3 * GB // 2),
        (["--hicache-size"], 0),
        (["--hicache-size", "x"], 0),
        (["--hicache-ratio", "2"], 0),
        ([], 0),
    ],
)
def test_reserved_memory(arguments: list[str], expected: int) -> None:
    assert launcher.reserved_memory(arguments) == expected


def test_memory_of_a_control_group(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2 kB\nMemAvailable: 64000000 kB\n")
    assert launcher.available_memory(meminfo, tmp_path) == 64000000 * 1024
    for limit, expected in (("max", 64000000 * 1024), ("20000000000", 19 * GB), ("5", 0)):
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text(f"{GB}\n")
        assert launcher.available_memory(meminfo, tmp_path) == expected
    # Files that it has read count as used until somebody wants their memory.
    (tmp_path / "memory.max").write_text("40000000000\n")
    (tmp_path / "memory.current").write_text("30000000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 5000000000\n")
    assert launcher.available_memory(meminfo, tmp_path) == 15 * GB


def test_a_kernel_that_does_not_say_is_not_taken_at_a_guess(tmp_path: Path) -> None:
    assert launcher.available_memory(tmp_path / "meminfo", tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 2 kB\n")
    assert launcher.available_memory(tmp_path / "meminfo", tmp_path) is None


@pytest.fixture
def home(tmp_path: Path, layer: Path) -> Path:
    """An installed runtime as far as its launcher is concerned, its path with a space."""
    from sm120.integration.build import runtime

    home = tmp_path / "runtimes" / "cuda 1"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)
    (home / "runtime.json").write_text(json.dumps({"deps": layer.name, "identity": "0123456789abcdef"}))
    runtime._write_launchers(home)
    return home


def started(home: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "HOME": str(home)}
    return subprocess.run([*command], env={**base, **environment}, capture_output=True, text=True)


def test_with_runtime(home: Path, layer: Path) -> None:
    own_cache = "/mine"
    done = started(home, str(home / "bin" / "with-runtime"), "env", TRITON_CACHE_DIR=own_cache, CUDA_HOME="/nowhere")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert found["CUDA_HOME"] == found["CUDA_PATH"] == str(layer / "toolkit")
    assert found["PATH"].split(":")[:3] == [str(home / "bin"), str(layer / "bin"), str(layer / "toolkit" / "bin")]
    jit = home / ".cache" / "sm120" / "jit" / "0123456789ab"
    assert found["SGLANG_JIT_CACHE_DIR"] == str(jit / "sglang")
    assert found["FLASHINFER_WORKSPACE_BASE"] == str(jit / "flashinfer")
    assert found["TRITON_CACHE_DIR"] == own_cache
    assert int(found["MAX_JOBS"]) >= 1


def test_through_a_link(home: Path, tmp_path: Path, layer: Path) -> None:
    """As `build/runtime` is one."""
    (tmp_path / "runtime").symlink_to(home)
    done = started(home, str(tmp_path / "runtime" / "bin" / "with-runtime"), "sh", "-c", "echo $CUDA_HOME")
    assert done.stdout.strip() == str(layer / "toolkit"), done.stderr


@pytest.mark.parametrize(("words", "said"), [([], "no command is given"), (["no-such-command"], "no such command")])
def test_with_runtime_and_nothing_to_run(home: Path, words: list[str], said: str) -> None:
    done = started(home, str(home / "bin" / "with-runtime"), *words)
    assert done.returncode == 2 and done.stderr.startswith("error: [command-missing] ") and said in done.stderr
    assert len(done.stderr.splitlines()) == 2 and "  fix: " in done.stderr


@pytest.mark.parametrize("text", [None, "", "[]", '{"identity": "0"}'])
def test_a_runtime_that_is_not_whole_says_so(home: Path, text: str | None) -> None:
    (home / "runtime.json").unlink()
    if text is not None:
        (home / "runtime.json").write_text(text)
    done = started(home, str(home / "bin" / "serve"))
    assert done.returncode == 2 and done.stderr.startswith("error: [runtime-record] ") and "make runtime" in done.stderr


def test_serve_gets_every_argument(home: Path) -> None:
    """SGLang is a module that writes down what it was started with."""
    package = home / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text("import sys, os; print(sys.argv[1:], os.environ['MAX_JOBS'])")
    arguments = ["--model-path", "a b", "--hicache-size", "100000"]
    done = started(home, str(home / "bin" / "serve"), *arguments, PYTHONPATH=str(package.parent))
    assert done.stdout.strip() == f"{arguments} 1", done.stderr
