"""Every GPU that a server will take is looked at, not only the first."""

from __future__ import annotations

import pytest

from sm120.integration.common.gpus import Gpu
from sm120.integration.serve.preflight import capability_check, preflight, taken_gpus
from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.server_arguments import Machine

PRO = Gpu("0", "GPU-aa", "RTX PRO 6000", "12.0", "595", "97887 MiB")
TWIN = Gpu("1", "GPU-bb", "RTX PRO 6000", "12.0", "595", "97887 MiB")
ADA = Gpu("1", "GPU-cc", "RTX 4090", "8.9", "595", "24564 MiB")


@pytest.mark.parametrize(
    ("settings", "second", "ok", "said"),
    [
        ([], ADA, True, "RTX PRO 6000"),
        (["tp-size=2"], ADA, False, "GPU 1: RTX 4090, 8.9"),
        (["tp-size=2"], TWIN, True, "GPU 1: RTX PRO 6000, 12.0"),
        (["pp-size=2"], ADA, False, "GPU 1: RTX 4090, 8.9"),
        (["dp-size=2"], ADA, False, "GPU 1: RTX 4090, 8.9"),
        (["tp-size=1", "dp-size=2", "enable-dp-attention=true"], ADA, True, "RTX PRO 6000"),
        (["base-gpu-id=1"], ADA, False, "RTX 4090, 8.9"),
        (["tp-size=2", "base-gpu-id=1"], TWIN, False, "no GPU 2"),
        (["tp-size=2", "gpu-id-step=2"], TWIN, False, "no GPU 2"),
        (["tp-size=3"], TWIN, False, "no GPU 2"),
    ],
)
def test_capability(settings: list[str], second: Gpu, ok: bool, said: str) -> None:
    check = capability_check(load_profile("flash-next", settings), [PRO, second])
    assert check.ok is ok and said in check.found, check


def test_the_preflight_looks_at_the_compiler(tmp_path, monkeypatch) -> None:
    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'release 12.6, V12.6.20'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    machine = Machine(True, True)
    found = preflight(load_profile("flash-next"), runtime=tmp_path, storage=None, gpus=[PRO], machine=machine)
    check = next(check for check in found if check.name == "CUDA compiler")
    assert check.ok is False and "nvcc is 12.6" in check.found
    on_cpu = preflight(load_profile("cpu-proof"), runtime=tmp_path, storage=None, gpus=None, machine=machine)
    assert not any(check.name == "CUDA compiler" for check in on_cpu)


def test_no_gpu_of_no_driver() -> None:
    assert taken_gpus(load_profile("flash-next", ["tp-size=2"]), None) == []
