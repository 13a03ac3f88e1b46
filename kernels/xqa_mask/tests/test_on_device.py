"""The shipped entry by the same oracle: on an SM120 device through SGLang's JIT, elsewhere on the simulated one."""

from __future__ import annotations

import pytest
import torch
from xqa_mask_cases import CASES, Case
from xqa_mask_host_build import FOLDER

from sm120.kernels._kit import poison, shipped_entry

pytestmark = pytest.mark.gpu


@pytest.fixture
def fill_xqa_mask(request: pytest.FixtureRequest):
    """Inside SGLang: sglang.kernels.ops.attention.xqa_mask.fill_xqa_mask."""
    request.getfixturevalue("_device")
    return shipped_entry.load(FOLDER, "sglang_op.py").fill_xqa_mask


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_word_is_the_reference_s(case: Case, fill_xqa_mask) -> None:
    with poison.guarded(case.expected().shape, torch.uint16, "cuda") as out:
        fill_xqa_mask(out, case.offsets("cuda"), case.q_len)
    assert torch.equal(out.cpu().to(torch.int32), case.expected().to(torch.int32))


def test_a_captured_graph_follows_the_lengths(fill_xqa_mask) -> None:
    first, second = Case(8, (3, 0, 8, 1)), Case(8, (8, 1, 0, 3))
    offsets = first.offsets("cuda")
    out = torch.empty(first.expected().shape, dtype=torch.uint16, device="cuda")
    fill_xqa_mask(out, offsets, 8)  # loads the module outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fill_xqa_mask(out, offsets, 8)
    for case in (first, second):
        offsets.copy_(case.offsets())
        graph.replay()
        assert torch.equal(out.cpu().to(torch.int32), case.expected().to(torch.int32))
