"""The cuda lock brings one CUDA toolkit: a compiler refuses the headers of another release."""

import re

import pytest

from sm120.integration.common.checkout import find_checkout

# What nvcc runs or reads, and what a JIT module links.
TOOLKIT = (
    "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-nvrtc",
    "nvidia-cuda-cccl", "nvidia-nvjitlink", "nvidia-cuda-cupti", "nvidia-nvtx",
)  # fmt: skip


def releases(text: str) -> dict[str, str]:
    """Major and minor version of each package of the toolkit, and of the toolkit that torch asks for."""
    pins = dict(re.findall(r"(?m)^([A-Za-z0-9_.-]+)==([0-9][^\s;\\]*)", text))
    return {name: ".".join(pins[name].split(".")[:2]) for name in (*TOOLKIT, "cuda-toolkit") if name in pins}


@pytest.fixture(scope="module")
def lock() -> str:
    return (find_checkout().locks / "cuda.txt").read_text()


def test_one_release(lock: str) -> None:
    found = releases(lock)
    assert set(found) == {*TOOLKIT, "cuda-toolkit"}
    assert set(found.values()) == {"13.0"}, found


def test_a_newer_compiler_is_seen(lock: str) -> None:
    newer = re.sub(r"(?m)^nvidia-cuda-nvcc==\S+", "nvidia-cuda-nvcc==13.5.37", lock)
    assert set(releases(newer).values()) == {"13.0", "13.5"}


def test_random_number_headers(lock: str) -> None:
    """FlashInfer's sampling kernels include curand_kernel.h, which stands in a package of its own."""
    assert re.search(r"(?m)^nvidia-curand==10\.4\.0\.", lock), "the curand of toolkit 13.0"
