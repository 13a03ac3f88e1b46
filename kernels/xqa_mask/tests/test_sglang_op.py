"""The file that ships inside SGLang: the width of its rows, and what it hands to SGLang's JIT."""

from __future__ import annotations

import pytest
import torch
from xqa_mask_host_build import FOLDER

from sm120.kernels._kit import shipped_entry
from sm120.kernels.xqa_mask import reference


@pytest.fixture
def shipped(simulated_device):
    return shipped_entry.load(FOLDER, "sglang_op.py")


def test_a_row_has_the_width_that_xqa_reads(shipped) -> None:
    for q_len in range(1, 129):
        assert shipped.xqa_mask_width(q_len) == reference.words_per_row(q_len)


def test_a_tensor_in_host_memory_reaches_no_kernel(shipped) -> None:
    mask, offsets = torch.zeros(4, 2, dtype=torch.uint16), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="is a CPU tensor"):
        shipped.fill_xqa_mask(mask, offsets, 4)
    with pytest.raises(ValueError, match="is a CPU tensor"):
        shipped.fill_xqa_mask(mask.cuda(), offsets, 4)


def test_it_mentions_nothing_of_this_project() -> None:
    for name in ("sglang_op.py", "xqa_mask.cuh", "xqa_mask_launch.cuh"):
        assert "sm120" not in (FOLDER / name).read_text()
