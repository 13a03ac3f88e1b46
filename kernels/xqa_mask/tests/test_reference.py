"""The reference against figures that were published elsewhere, and against itself in another form."""

from __future__ import annotations

import pytest
import torch

from sm120.kernels._kit import value_coded
from sm120.kernels.xqa_mask import reference

PUBLISHED = {  # prefix length: row means of a causal block of 4 (flashinfer #4137)
    21: [1.045455, 1.173913, 1.458333, 2.04],
    3: [1.25, 1.8, 2.8333, 4.7143],
}


def attend(kind: str, prefix_len: int, q_len: int, values: torch.Tensor) -> torch.Tensor:
    mask = reference.pack([reference.visible_drafts(kind, q_len)], q_len)
    zeros = torch.zeros(1, prefix_len + q_len, 1, 4, dtype=torch.float64)
    q = torch.zeros(q_len, 1, 4, dtype=torch.float64)
    return reference.attention(q, zeros, values[None, :, None, :], mask, [0, q_len], q_len, 1.0)[:, 0]


@pytest.mark.parametrize("prefix_len", PUBLISHED)
def test_the_published_row_means_come_out(prefix_len: int) -> None:
    means = attend("causal", prefix_len, 4, value_coded.power_values(prefix_len, 4))[:, 0]
    assert means.tolist() == pytest.approx(PUBLISHED[prefix_len], abs=1e-4)


@pytest.mark.parametrize("prefix_len", PUBLISHED)
def test_a_full_mask_does_not_pass_for_a_causal_one(prefix_len: int) -> None:
    means = attend("full", prefix_len, 4, value_coded.power_values(prefix_len, 4))[:, 0]
    assert means.tolist() == pytest.approx([PUBLISHED[prefix_len][-1]] * 4, abs=1e-4)
    assert means.tolist() != pytest.approx(PUBLISHED[prefix_len], abs=1e-4)


@pytest.mark.parametrize("q_len", [1, 4, 33])
@pytest.mark.parametrize("prefix_len", [0, 1, 65])
def test_each_row_attends_exactly_its_drafts(q_len: int, prefix_len: int) -> None:
    values = value_coded.unit_values(prefix_len, q_len)
    for kind in ("causal", "full"):
        for i, row in enumerate(attend(kind, prefix_len, q_len, values)):
            expected = list(range(i + 1)) if kind == "causal" else list(range(q_len))
            assert value_coded.attended(prefix_len, row) == expected


def test_masked_attention_equals_torch_with_a_boolean_mask() -> None:
    torch.manual_seed(0)
    prefix_len, q_len, heads, dim = 9, 6, 2, 8
    table = torch.tensor(reference.visible_drafts("causal", q_len))
    q = torch.randn(q_len, heads, dim, dtype=torch.float64)
    k, v = torch.randn(2, 1, prefix_len + q_len, heads, dim, dtype=torch.float64)
    mask = reference.pack([table.tolist()], q_len)
    ours = reference.attention(q, k, v, mask, [0, q_len], q_len, 0.3)
    allowed = torch.cat([torch.ones(q_len, prefix_len, dtype=torch.bool), table], 1)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), attn_mask=allowed, scale=0.3
    )
    assert torch.allclose(ours, theirs.transpose(0, 1), atol=1e-12)


@pytest.mark.parametrize("q_len", [1, 2, 8, 16, 17, 31, 32, 33, 64, 65, 96, 128])
def test_causal_words_are_the_closed_form(q_len: int) -> None:
    packed = reference.pack([reference.visible_drafts("causal", q_len)], q_len).to(torch.int64)
    for i in range(q_len):
        for word in range(reference.words_per_row(q_len)):
            assert packed[i, word] == (1 << min(max(i + 1 - 16 * word, 0), 16)) - 1


def test_the_contract_s_examples() -> None:
    eight = reference.pack([reference.visible_drafts("causal", 8)], 8)
    assert eight[:, 0].tolist() == [0x1, 0x3, 0x7, 0xF, 0x1F, 0x3F, 0x7F, 0xFF]
    assert eight[:, 1].tolist() == [0] * 8
    wide = reference.pack([reference.visible_drafts("causal", 33)], 33)
    assert wide[32].tolist() == [0xFFFF, 0xFFFF, 0x0001, 0x0000]
