"""The same oracle on a device, or on the simulated one. Not run yet on any device."""

from __future__ import annotations

import itertools

import pytest
import torch

from sm120.kernels._kit.closeness import assert_close
from sm120.kernels._lib.device import why_no_device
from sm120.kernels.qsa import op
from sm120.kernels.qsa import reference as ref

pytestmark = pytest.mark.gpu
FP8 = torch.float8_e4m3fn


LENGTHS = (1, 3, 4, 5, 63, 64, 65, 2047, 2048, 2051, 8192)
FORMS = list(itertools.product(LENGTHS, (0, 1, 8), (torch.bfloat16, FP8)))
# The interpreter takes seconds for a full selection: there each long length comes once, and all forms in `make test-long`.
ONCE = {(2047, 0, FP8), (2048, 8, torch.bfloat16), (2051, 8, FP8), (8192, 1, torch.bfloat16)}
NO_DEVICE = why_no_device() is not None


@pytest.mark.parametrize(
    ("length", "splits", "pool"),
    [
        pytest.param(*form, marks=pytest.mark.long if NO_DEVICE and form[0] > 65 and form not in ONCE else ())
        for form in FORMS
    ],
    ids=str,
)
def test_attention(length, splits, pool):
    generator = torch.Generator().manual_seed(length)
    slots, heads, kv_heads, dim = 8192 + 64, 24, 2, 256
    k, v = torch.randn(2, slots, kv_heads, dim, generator=generator)
    scales = (0.25, 0.5) if pool == FP8 else (1.0, 1.0)
    k, v = (ref.quantize_kv(x, s) if pool == FP8 else x.to(pool) for x, s in zip((k, v), scales, strict=True))
    q = torch.randn(3, heads, dim, generator=generator).bfloat16()
    table = (1 + torch.randperm(slots - 1, generator=generator)[: max(length, 1)]).int()[None]
    chosen = torch.randperm(length, generator=generator)[:2051].tolist()
    rows = [chosen, [-1, *chosen[: len(chosen) // 2], -1], []]
    indices, lengths = ref.pad_rows(rows, 2055), torch.full((3,), length, dtype=torch.int32)
    selected = torch.where(indices >= 0, table[0, indices.clamp_min(0).long()], -1)
    expected = ref.sparse_attention(q, k.double(), v.double(), selected, dim**-0.5, *scales)
    tensors = [x.cuda() for x in (q, k, v, indices, lengths, table, torch.zeros(3, dtype=torch.int32))]
    got = op.attention(*tensors, dim**-0.5, *scales, splits)
    assert_close("out", expected, got.cpu(), 4e-3)


@pytest.mark.parametrize("width", [512, 513, 4097, 131_072])
@pytest.mark.parametrize("levels", [1, 3, 10**6])
def test_block_topk(width, levels):
    scores = torch.randint(0, levels, (3, width), generator=torch.Generator().manual_seed(width)).float()
    starts, lengths = torch.zeros(3, dtype=torch.int32), torch.tensor([width, width // 2, 7], dtype=torch.int32)
    got = op.block_topk(scores.cuda(), starts.cuda(), lengths.cuda(), 512).cpu()
    for row in range(3):
        chosen = sorted(ref.select_blocks(scores[row].double(), int(lengths[row]), 512))
        assert got[row].tolist() == chosen + [-1] * (512 - len(chosen))
