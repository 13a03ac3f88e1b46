"""The fused Gemma RMSNorm and RoPE kernel turns each lane by the position of the axis that owns it (sglang#34446)."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.kernels.ops.attention.fused_qk_rmsnorm_rope_gate import fused_qk_gemma_rmsnorm_rope_gate
from sglang.srt.layers.rotary_embedding.mrope import MRotaryEmbedding

Q_HEADS, KV_HEADS, DIM, ROTARY = 3, 1, 32, 16
SECTION = [4, 2, 2]
EPS = 1e-6
SEQUENTIAL = [0, 0, 0, 0, 1, 1, 2, 2]
INTERLEAVED = [0, 1, 2, 0, 1, 2, 0, 0]


def rope(interleaved):
    return MRotaryEmbedding(DIM, ROTARY, 128, 10000, True, torch.float32, SECTION, interleaved)


def expected(x, heads, weight, positions, axes):
    """Float64, token by token and lane by lane; one rounding of the normed row, as the model's own norm does."""
    rows = x.double().view(x.shape[0], heads, DIM)
    normed = rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt() * (weight.double() + 1)
    out = normed.half().double()
    for token in range(x.shape[0]):
        for lane, axis in enumerate(axes):
            angle = torch.tensor(float(positions[axis, token]) / 10000 ** (2 * lane / ROTARY), dtype=torch.float64)
            a, b = out[token, :, lane].clone(), out[token, :, lane + ROTARY // 2].clone()
            out[token, :, lane] = a * angle.cos() - b * angle.sin()
            out[token, :, lane + ROTARY // 2] = b * angle.cos() + a * angle.sin()
    return out


@pytest.mark.parametrize(("interleaved", "axes"), [(False, SEQUENTIAL), (True, INTERLEAVED)], ids=["split", "mixed"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_each_lane_turns_by_its_own_axis(tokens, interleaved, axes):
    generator = torch.Generator().manual_seed(3)
    q_gate = torch.randn(tokens, Q_HEADS * 2 * DIM, generator=generator).half()
    k = torch.randn(tokens, KV_HEADS * DIM, generator=generator).half()
    q_weight, k_weight = (torch.randn(DIM, generator=generator).half() for _ in range(2))
    # A strided view, as the runner's buffer gives it, and three positions that differ for every token.
    positions = torch.tensor([[5, 90, 17], [64, 3, 40], [29, 8, 101]])[:, :tokens]
    embedding = rope(interleaved)
    q, k_out, gate = fused_qk_gemma_rmsnorm_rope_gate(
        q_gate,
        k,
        q_weight,
        k_weight,
        embedding.cos_sin_cache,
        positions,
        EPS,
        Q_HEADS,
        KV_HEADS,
        DIM,
        ROTARY,
        mrope_axis_map=embedding.axis_map,
    )
    pairs = q_gate.view(tokens, Q_HEADS, 2, DIM)
    want_q = expected(pairs[:, :, 0].reshape(tokens, -1), Q_HEADS, q_weight, positions, axes)
    want_k = expected(k, KV_HEADS, k_weight, positions, axes)
    torch.testing.assert_close(q.view(tokens, Q_HEADS, DIM).double(), want_q, rtol=2e-3, atol=4e-3)
    torch.testing.assert_close(k_out.view(tokens, KV_HEADS, DIM).double(), want_k, rtol=2e-3, atol=4e-3)
    assert torch.equal(gate, pairs[:, :, 1])
