"""The file that ships inside SGLang: its torch rows are the reference's, and it refuses another row width."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
from xqa_mask_cases import CASES, Case

from sm120.kernels._lib import poison

FOLDER = Path(__file__).parent.parent
CHAINS = [case for case in CASES if case.kind != "tree"]


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch):
    """sglang_op.py by itself: SGLang's JIT is a stand-in that must not be reached on the CPU."""
    utils = types.ModuleType("sglang.kernels.jit.utils")
    utils.cache_once = lambda function: function
    utils.load_jit = None
    for name in ("sglang", "sglang.kernels", "sglang.kernels.jit"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.kernels.jit.utils", utils)
    spec = importlib.util.spec_from_file_location("shipped_xqa_mask", FOLDER / "sglang_op.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", CHAINS, ids=str)
def test_every_word_is_the_reference_s(case: Case, shipped) -> None:
    with poison.guarded(case.expected().shape, torch.uint16) as out:
        lengths = case.arguments().get("cu_seqlens")
        assert shipped.fill_xqa_mask(out, case.q_len, lengths, full=case.kind == "full") is out
    assert torch.equal(out.to(torch.int32), case.expected().to(torch.int32))


def test_rows_past_the_last_request_are_zero(shipped) -> None:
    out = poison.unwritten((11, 2), torch.uint16)
    shipped.fill_xqa_mask(out, 8, torch.tensor([0, 3, 3, 5], dtype=torch.int32))
    assert out[:, 0].tolist() == [1, 3, 7, 1, 3, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 8, 4), torch.uint16), ((2, 8, 2), torch.int32), ((2, 8, 1), torch.uint16)]
)
def test_another_row_width_is_refused(shape, dtype, shipped) -> None:
    with pytest.raises(ValueError, match=r"mask: got .* needs torch.uint16 rows of 2 words for q_len=8"):
        shipped.fill_xqa_mask(torch.zeros(shape, dtype=dtype), 8)


STRIDED = {
    "every other word": ((8, 2, 4), lambda mask: mask[..., ::2]),
    "requests and drafts exchanged": ((8, 2, 2), lambda mask: mask.transpose(0, 1)),
    "columns of a wider buffer": ((8, 6), lambda mask: mask[:, :2]),
}


@pytest.mark.parametrize(("shape", "view"), STRIDED.values(), ids=STRIDED)
def test_a_strided_mask_is_refused_and_left_alone(shape, view, shipped) -> None:
    """The last of them flattens without a copy, so only the check tells that XQA would misread it."""
    buffer = poison.unwritten(shape, torch.uint16)
    with pytest.raises(ValueError, match=r"mask: shape \(.*\) has stride \(.*\), needs to be contiguous"):
        shipped.fill_xqa_mask(view(buffer), 4)
    assert (buffer.to(torch.int32) == 0xA5A5).all()


def test_the_first_requests_of_a_mask_are_contiguous(shipped) -> None:
    buffer = poison.unwritten((5, 4, 2), torch.uint16)
    shipped.fill_xqa_mask(buffer[:2], 4)
    assert buffer[:2, :, 0].tolist() == [[1, 3, 7, 15]] * 2 and (buffer[2:].to(torch.int32) == 0xA5A5).all()


def test_it_mentions_nothing_of_this_project() -> None:
    for name in ("sglang_op.py", "xqa_mask.cuh", "xqa_mask_launch.cuh"):
        assert "sm120" not in (FOLDER / name).read_text()
