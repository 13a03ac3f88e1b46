"""SGLang's JIT, as patched, builds with the real nvcc for sm_120a, and host code goes through the compiler in CXX."""

import os
import shlex
import shutil

import pytest
from sglang.kernels.jit.utils.compile import ninja, toolchain
from sglang.kernels.jit.utils.compile.spec import BuildSpec

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA toolkit's nvcc")


@pytest.fixture(autouse=True)
def toolchain_of_this_test(monkeypatch):
    for name, function in vars(toolchain).copy().items():
        if hasattr(function, "__wrapped__"):
            monkeypatch.setattr(toolchain, name, function.__wrapped__)
    monkeypatch.setattr(toolchain, "target_flags", lambda: ["-gencode=arch=compute_120a,code=sm_120a"])
    # Whether the CUDA runtime library can be linked is not the question here
    monkeypatch.setattr(toolchain, "base_link_flags", lambda *, with_device: ["-shared"])
    for name in ("CXX", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)


def make_compiler(folder) -> str:
    """A g++ that logs each call next to itself."""
    folder.mkdir()
    path = folder / "my-g++"
    path.write_text(f'#!/bin/sh\necho "$*" >> {shlex.quote(str(path))}.log\nexec {shutil.which("g++")} "$@"\n')
    path.chmod(0o755)
    return str(path)


def build(tmp_path):
    source = tmp_path / "tiny.cu"
    source.write_text("__global__ void kernel(int* p) { *p = 1; }\nint host() { return 2; }\n")
    spec = BuildSpec(
        module_args=("tiny",),
        cpp_files=(),
        cuda_files=(str(source),),
        cpp_wrappers=(),
        cuda_wrappers=(),
        cflags=(),
        cuda_cflags=(),
        ldflags=(),
        include_paths=(),
        header_only=False,
    )
    return ninja.build(spec=spec, build_dir=tmp_path / "build", build_file=ninja.generate(spec))


@pytest.fixture
def ccache(tmp_path, monkeypatch):
    """The machine's ccache; where it has none, a launcher of that name that only runs its arguments."""
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    if shutil.which("ccache") is None:
        path = tmp_path / "launchers" / "ccache"
        path.parent.mkdir()
        path.write_text('#!/bin/sh\nexec "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("launcher", ["", "ccache "])
@pytest.mark.parametrize("folder", ["plain", "with space", "dol$HOME", "quote'd"])
def test_nvcc_and_the_link_run_the_compiler(folder, launcher, ccache, tmp_path, monkeypatch):
    compiler = make_compiler(tmp_path / folder)
    monkeypatch.setenv("CXX", launcher + (shlex.quote(compiler) if launcher else compiler))
    assert build(tmp_path).is_file()
    with open(f"{compiler}.log") as log:
        calls = log.read()
    assert "-D__CUDACC__" in calls, "nvcc did not use it"
    assert "-shared" in calls, "the link did not use it"


def test_unset_cxx_builds(tmp_path):
    assert build(tmp_path).is_file()


def test_nonexistent_cxx_fails_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(RuntimeError, match=r"/nonexistent/g\+\+: No such file"):
        build(tmp_path)
