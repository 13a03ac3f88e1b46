"""Without a driver: one safe probe, a printed reason, and nothing that could hang."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from sm120.kernels._lib import device


def test_a_gpu_test_runs_on_the_simulated_device_and_says_so(pytester_free_run) -> None:
    if device.why_no_device() is None:
        pytest.skip("a device is here: GPU tests run on it")
    body = "import torch\n\n@pytest.mark.gpu\ndef test_on_device():\n    assert torch.zeros(3).cuda().is_cuda\n"
    out = pytester_free_run(body)
    said = f"1 device tests ran on the simulated device, evidence for no rung: {device.why_no_device()}"
    assert "1 passed" in out and said in out


def test_a_gpu_test_on_a_device_refuses_interpreted_kernels(pytester_free_run) -> None:
    """Evidence for the `gpu` rung comes from compiled kernels alone."""
    body = (
        "import conftest\nfrom sm120.kernels.recover_ssm import triton_recover\n"
        "conftest.why_no_device = lambda: None\n\n"
        "@pytest.mark.gpu\ndef test_on_device():\n    pass\n"
    )
    out = pytester_free_run(body, TRITON_INTERPRET="1")
    assert "these would run in Triton's interpreter: ['sm120.kernels.recover_ssm.triton_recover." in out
    assert "1 error" in out


def fake_runtime(status: str, count: int, major: int, minor: int) -> types.ModuleType:
    class Status:
        def __init__(self, name: str) -> None:
            self.name = name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Status) and self.name == other.name

        __hash__ = None

    runtime = types.ModuleType("runtime")
    runtime.cudaError_t = types.SimpleNamespace(cudaSuccess=Status("cudaSuccess"))
    runtime.cudaGetDeviceCount = lambda: (Status(status), count)
    properties = types.SimpleNamespace(major=major, minor=minor)
    runtime.cudaGetDeviceProperties = lambda index: (Status("cudaSuccess"), properties)
    return runtime


@pytest.mark.parametrize(
    ("status", "count", "pair", "reason"),
    [
        ("cudaErrorInsufficientDriver", 0, (0, 0), "no usable NVIDIA driver .cudaGetDeviceCount: cudaErrorInsuff"),
        ("cudaSuccess", 0, (0, 0), "no NVIDIA device"),
        ("cudaSuccess", 1, (9, 0), r"device 0 has capability \(9, 0\), needs one of \[\(12, 0\)\]"),
        ("cudaSuccess", 1, (12, 1), r"device 0 has capability \(12, 1\)"),
        ("cudaSuccess", 1, (12, 0), None),
    ],
)
def test_the_probe_accepts_exact_pairs_only(monkeypatch, status, count, pair, reason) -> None:
    import cuda.bindings

    monkeypatch.setattr(cuda.bindings, "runtime", fake_runtime(status, count, *pair), raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", fake_runtime(status, count, *pair))
    found = device.why_no_device.__wrapped__()
    if reason is None:
        assert found is None
    else:
        import re

        assert re.search(reason, found)


@pytest.fixture
def pytester_free_run(tmp_path, request):
    """Runs one test file under the kernels' conftest in a process of its own and returns what pytest printed."""

    def run(body: str, **variables: str) -> str:
        folder = tmp_path / "case"
        folder.mkdir()
        conftest = request.config.rootpath / "kernels" / "conftest.py"
        (folder / "conftest.py").write_text(conftest.read_text())
        (folder / "test_case.py").write_text(f"import pytest\n\n{body}")
        (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a device\n")
        command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(folder)]
        environment = os.environ | variables
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
        return done.stdout

    return run
