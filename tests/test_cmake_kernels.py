"""The CMake build of the kernels: host modules, fatbins, and architectures that are spelled exactly or refused."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on PATH")


def cmake(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["cmake", *arguments], capture_output=True, text=True, timeout=600)


def configure(build: Path, *defines: str) -> subprocess.CompletedProcess[str]:
    pybind11 = pytest.importorskip("pybind11", reason="pybind11 is a build requirement and not installed here")
    common = [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    return cmake("-S", str(ROOT), "-B", str(build), *common, "-DPYBIND11_FINDPYTHON=ON", *defines)


@pytest.mark.slow
def test_every_kernel_installs_its_host_module_and_its_fatbin(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    done = cmake("--build", str(tmp_path / "build"), "--target", "install", "--parallel", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = tmp_path / "out" / "sm120" / "kernels"
    for name in ("xqa_mask", "mrope"):
        assert (kernels / name / f"{name}.fatbin").exists() == (shutil.which("nvcc") is not None)
    folder = kernels / "xqa_mask"
    (library,) = folder.glob("_host*.so")
    torch = pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("_host", library)
    host = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host)
    out = torch.full((2, 3, 2), 9, dtype=torch.uint16)
    host.chain(out.data_ptr(), 0, 6, 2, 3, False)
    assert out.tolist() == [[[1, 0], [3, 0], [7, 0]]] * 2
    with pytest.raises(RuntimeError, match="grid"):
        host.chain(out.data_ptr(), 0, -1, 2, 3, False)


@pytest.mark.parametrize("arch", ["120", "12.0", "12.0a", "120f", "120a+PTX", "sm_120a", "120a;12.0"])
def test_an_architecture_that_is_not_exact_is_refused(arch: str, tmp_path: Path) -> None:
    done = gencode(tmp_path, arch)
    assert done.returncode != 0 and "needs exact targets such as 120a" in done.stderr


def test_exact_architectures_become_gencode_flags(tmp_path: Path) -> None:
    done = gencode(tmp_path, "90a;120a")
    assert done.returncode == 0, done.stderr
    flags = "-gencode;arch=compute_90a,code=sm_90a;-gencode;arch=compute_120a,code=sm_120a"
    assert flags in done.stderr + done.stdout
    assert "is empty" in gencode(tmp_path, "").stderr


def gencode(folder: Path, archs: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.cmake"
    script.write_text(
        f'include("{ROOT}/cmake/Sm120Gencode.cmake")\nsm120_gencode(flags {archs})\nmessage("${{flags}}")\n'
    )
    return cmake("-P", str(script))
