"""The same oracles on an SM120 device, eagerly and from a captured graph."""

from __future__ import annotations

import pytest
import torch
from xqa_mask_cases import CASES, Case

from sm120.kernels.xqa_mask.op import pack_mask

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_word_is_the_reference_s(case: Case) -> None:
    out = torch.full(case.expected().shape, 0xA5A5, dtype=torch.uint16).cuda()
    arguments = case.arguments("cuda")
    arguments.pop("total_q", None)
    pack_mask(case.kind, case.q_len, out=out, **arguments)
    assert torch.equal(out.cpu().to(torch.int32), case.expected().to(torch.int32))


def test_a_captured_graph_follows_the_lengths() -> None:
    first, second = Case("causal", 8, (3, 0, 8, 1), ragged=True), Case("causal", 8, (8, 1, 0, 3), ragged=True)
    offsets = torch.tensor(first.offsets, dtype=torch.int32, device="cuda")
    out = torch.empty(first.expected().shape, dtype=torch.uint16, device="cuda")
    pack_mask("causal", 8, cu_seqlens=offsets, out=out)  # loads the module outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pack_mask("causal", 8, cu_seqlens=offsets, out=out)
    for case in (first, second):
        offsets.copy_(torch.tensor(case.offsets, dtype=torch.int32))
        graph.replay()
        assert torch.equal(out.cpu().to(torch.int32), case.expected().to(torch.int32))


def test_a_wrong_parent_on_the_device_is_refused_when_asked_for() -> None:
    parents = torch.tensor([[-1, 0, 2, 1]], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="request 0 token 2 has parent 2"):
        pack_mask("tree", 4, batch=1, parents=parents, check_values=True)
