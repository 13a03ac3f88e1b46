"""What all tests share: which must not run side by side, which `make check` leaves out, and CUDA toolkits of files only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .mini_checkout import built, mini, refuses, template

__all__ = ["built", "mini", "refuses", "template"]  # the small checkout, for tests of every room

# Tests that read the unpacked releases or run the installed runtime; and the fixtures that build a small checkout.
NEED_A_RUNTIME = ("runtime", "trees", "served", "upstream_probes")
MAKE_A_CHECKOUT = ("mini", "built", "queue")
# Groups that keep one worker for minutes: begun last, they would leave the other one with nothing to do.
FIRST = ("served", "probes", "in_runtime", "upstream-probes", "xqa_launcher", "mrope_binding", "qsa_codegen")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups, and before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers profile free memory and time themselves: one at a time, on one worker, whatever runs on the other."""
    for item in items:
        if item.get_closest_marker("served") is not None:
            item.add_marker(pytest.mark.xdist_group("served"))
        below = (
            item.path.relative_to(Path(__file__).parent).parts
            if item.path.is_relative_to(Path(__file__).parent)
            else ()
        )
        if set(below) & set(NEED_A_RUNTIME) or set(getattr(item, "fixturenames", ())) & set(MAKE_A_CHECKOUT):
            item.add_marker(pytest.mark.runtime)
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """When it is a test's turn: the long groups first, all others in the order in which they were collected."""
    marker = item.get_closest_marker("xdist_group")
    return FIRST.index(marker.args[0]) if marker is not None and marker.args[0] in FIRST else len(FIRST)


def make_toolkit(home: Path, compiler: str = "13.0", headers: str | None = None, without: tuple[str, ...] = ()) -> Path:
    """A folder that answers as a CUDA toolkit does; `headers` are those of the compiler unless said otherwise."""
    major, minor = (headers or compiler).split(".")
    files = {
        "bin/nvcc": f"#!/bin/sh\necho 'Cuda compilation tools, release {compiler}, V{compiler}.88'\n",
        "include/cuda.h": f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}\n",
        "include/curand_kernel.h": "",
        "lib64/libcudart.so": "",
        "lib64/stubs/libcuda.so": "",
    }
    for name, text in files.items():
        if name in without:
            continue
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    if "bin/nvcc" not in without:
        (home / "bin/nvcc").chmod(0o755)
    return home


def make_wheels(packages: Path, compiler: str = "13.0") -> Path:
    """What pip unpacks of the toolkit's wheels: no lib64, no name without a version, no libcuda."""
    root = packages / "nvidia" / "cu13"
    make_toolkit(root, compiler, without=("lib64/libcudart.so", "lib64/stubs/libcuda.so"))
    header = root / "include" / "cuda.h"
    header.write_text(
        header.read_text()
        + "CUresult CUDAAPI cuInit(unsigned int Flags);\n"
        + "#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);\n"
    )
    (root / "lib").mkdir()
    (root / "nvvm" / "bin").mkdir(parents=True)
    for name in ("libcudart.so.13", "libcudart_static.a", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
        (root / "lib" / name).write_text(name)
    return packages


@pytest.fixture
def toolkit() -> Callable[..., Path]:
    return make_toolkit


@pytest.fixture
def wheels() -> Callable[..., Path]:
    return make_wheels
