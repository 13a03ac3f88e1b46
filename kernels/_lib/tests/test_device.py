"""Without a driver: one safe probe, a printed reason, and nothing that could hang."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import types

import pytest
import torch

from sm120.kernels._lib import device, fatbin


def test_a_gpu_test_skips_with_the_reason(pytester_free_run) -> None:
    if device.why_no_device() is None:
        pytest.skip("a device is here: GPU tests run")
    out = pytester_free_run("@pytest.mark.gpu\ndef test_on_device():\n    assert False\n")
    assert "1 skipped" in out and f"needs an SM120 device: {device.why_no_device()}" in out


def test_a_fatbin_is_refused_before_any_driver_call(monkeypatch: pytest.MonkeyPatch) -> None:
    if device.why_no_device() is None:
        pytest.skip("a device is here: fatbins load")
    monkeypatch.setattr(fatbin, "Fatbin", None)  # a call would be a TypeError
    fatbin.load.cache_clear()
    with pytest.raises(fatbin.NoDevice, match="xqa_mask: "):
        fatbin.load("xqa_mask")


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


def test_a_fatbin_asks_for_the_device_that_it_is_loaded_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.bindings

    runtime = fake_runtime("cudaSuccess", 2, 0, 0)
    pairs = [types.SimpleNamespace(major=12, minor=0), types.SimpleNamespace(major=9, minor=0)]
    runtime.cudaGetDeviceProperties = lambda index: (runtime.cudaError_t.cudaSuccess, pairs[index])
    monkeypatch.setattr(cuda.bindings, "runtime", runtime, raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    monkeypatch.setattr(fatbin, "why_no_device", device.why_no_device.__wrapped__)
    monkeypatch.setattr(fatbin, "Fatbin", lambda name, data, device_index: f"{name} on {device_index}")
    monkeypatch.setattr(fatbin, "read", lambda name: b"")
    load = fatbin.load.__wrapped__
    assert load("xqa_mask", 0) == "xqa_mask on 0"
    with pytest.raises(fatbin.NoDevice, match=r"xqa_mask: device 1 has capability \(9, 0\)"):
        load("xqa_mask", 1)
    pairs.reverse()  # the first device does not stand for the second
    assert load("xqa_mask", 1) == "xqa_mask on 1"


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

    def run(body: str) -> str:
        folder = tmp_path / "case"
        folder.mkdir()
        conftest = request.config.rootpath / "kernels" / "conftest.py"
        (folder / "conftest.py").write_text(conftest.read_text())
        (folder / "test_case.py").write_text(f"import pytest\n\n{body}")
        (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a device\n")
        command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(folder)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        return done.stdout

    return run


class Pair(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("count", ctypes.c_int32))


def test_arguments_are_marshalled_by_address() -> None:
    given = [0x1234, ctypes.c_int64(-5), ctypes.c_float(1.5), Pair(7, 9), 0, (ctypes.c_uint8 * 3)(1, 2, 3)]
    values, addresses = fatbin.marshal(given)
    assert len(addresses) == len(values) == 6
    assert ctypes.c_uint64.from_address(addresses[0]).value == 0x1234
    assert ctypes.c_int64.from_address(addresses[1]).value == -5
    assert ctypes.c_float.from_address(addresses[2]).value == 1.5
    assert Pair.from_address(addresses[3]).count == 9
    assert ctypes.c_uint64.from_address(addresses[4]).value == 0
    assert bytes((ctypes.c_uint8 * 3).from_address(addresses[5])) == b"\x01\x02\x03"


@pytest.mark.parametrize(
    "wrong", [1.5, None, True, "x", torch.zeros(1)], ids=["float", "None", "bool", "str", "tensor"]
)
def test_an_argument_of_unknown_width_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"argument 1: got .*, needs a ctypes object or a pointer as an int"):
        fatbin.marshal([0, wrong])


def test_a_driver_error_is_named() -> None:
    failed = types.SimpleNamespace(value=98, name="CUDA_ERROR_INVALID_HANDLE")
    with pytest.raises(RuntimeError, match="launching k: CUDA_ERROR_INVALID_HANDLE"):
        fatbin._value((failed,), "launching k")
    fine = types.SimpleNamespace(value=0, name="CUDA_SUCCESS")
    assert fatbin._value((fine,), "x") is None and fatbin._value((fine, 3), "x") == 3


def test_a_kernel_that_was_not_compiled_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    missing = (driver.CUresult.CUDA_ERROR_NOT_FOUND, None)
    monkeypatch.setattr(driver, "cuLibraryGetKernel", lambda library, name: missing)
    library = object.__new__(fatbin.Fatbin)
    library.name, library._library, library._functions = "xqa_mask", None, {}
    with pytest.raises(ValueError, match=r"xqa_mask\.fatbin: has no kernel xqa_mask_ring"):
        library._function("xqa_mask_ring")


def test_a_module_without_a_fatbin_names_the_way_to_one() -> None:
    with pytest.raises(FileNotFoundError, match=r"_lib\.fatbin is not installed: put nvcc on PATH"):
        fatbin.read("_lib")
