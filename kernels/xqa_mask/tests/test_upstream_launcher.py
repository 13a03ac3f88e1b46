"""The launcher form that SGLang compiles at run time: built against the wheel's headers, its checks run on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sm120.kernels._kit import compilers, upstream

FOLDER = Path(__file__).parent.parent
WRAPPER = """
#include "xqa_mask_launch.cuh"
#include <tvm/ffi/function.h>
namespace sglang {
TVM_FFI_DLL_EXPORT_TYPED_FUNC(xqa_mask_fill, (xqa_mask_fill));
}
"""


# one worker compiles for all tests of this file
pytestmark = pytest.mark.xdist_group("xqa_launcher")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory):
    """The launcher as a loaded module; nothing in it runs on a device here."""
    for reason in (compilers.missing_nvcc(), upstream.missing_sglang_headers(), upstream.missing_tvm_ffi()):
        if reason is not None:
            pytest.skip(reason)
    folder = tmp_path_factory.mktemp("launcher")
    (folder / "wrapper.cu").write_text(WRAPPER)
    library = upstream.build_jit_module(folder / "wrapper.cu", include=[FOLDER], out=folder / "xqa_mask.so")
    import tvm_ffi

    return tvm_ffi.load_module(str(library))


def rows(count: int = 16, words: int = 2) -> torch.Tensor:
    return torch.zeros(count, words, dtype=torch.uint16)


def offsets(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


REFUSED = {
    "host memory": ((rows(), offsets(0, 16), 8), r"Device value \[cpu.*not in the allowed options"),
    "dtype": ((rows().int(), offsets(0, 16), 8), r"Dtype value \[int32\] not in the allowed options: \[uint16\]"),
    "row width": ((rows(words=4), offsets(0, 16), 8), "Size mismatch for shape#1: expected 2 but got 4"),
    "row padded to 16": ((rows(words=3), offsets(0, 16), 33), "expected 4 but got 3"),
    "strides": ((rows(words=4)[:, :2], offsets(0, 16), 8), "[Ss]trid|Device value"),
    "no draft": ((rows(), offsets(0, 16), 0), r"q_len: got 0, needs 1\.\.128"),
    "longest draft, host memory": ((rows(128, words=8), offsets(0, 128), 128), r"Device value \[cpu"),
    "draft too long": ((rows(129, words=10), offsets(0, 129), 129), r"q_len: got 129, needs 1\.\.128"),
    "rank": ((rows()[None], offsets(0, 16), 8), "[Dd]im"),
    "no offsets": ((rows(), None, 8), "Expected `DLTensor.*` but got `None`"),
}


@pytest.mark.parametrize(("arguments", "says"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_argument_is_refused_before_any_launch(launcher, arguments, says) -> None:
    with pytest.raises((RuntimeError, TypeError), match=says):
        launcher.xqa_mask_fill(*arguments)
