"""The reference against definitions worked out by hand, and against transformers' own rotary embeddings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2VLTextConfig, Qwen3_5TextConfig, Qwen3VLMoeTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm, Qwen3_5TextRotaryEmbedding
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb as apply_partial
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import (
    Qwen3VLMoeTextRMSNorm,
    Qwen3VLMoeTextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from sm120.kernels.mrope import reference
from sm120.kernels.mrope.axes import axis_map

# transformers forms position * frequency in float32, so its angles are off by up to this times the position
ANGLE_ERROR = 2.0**-23


@pytest.mark.parametrize(
    ("layout", "section", "expected"),
    [
        ("sectioned", [2, 3, 1], "001112"),
        ("interleaved", [2, 2, 2], "012012"),
        ("interleaved", [4, 1, 1], "012000"),
        ("interleaved", [3, 1, 2], "012002"),
        ("glm_interleaved", [2, 2, 2], "012012"),
        ("glm_interleaved", [1, 3, 2], "012112"),
        ("glm_interleaved", [3, 3, 0], "010011"),
    ],
)
def test_axis_map_by_hand(layout: str, section: list[int], expected: str) -> None:
    assert "".join(map(str, axis_map(section, layout, 12))) == expected


@pytest.mark.parametrize("layout", ["sectioned", "interleaved", "glm_interleaved"])
def test_every_layout_spends_the_sections_of_qwen(layout: str) -> None:
    owners = axis_map([11, 11, 10], layout, 64)
    assert [owners.count(axis) for axis in range(3)] == [11, 11, 10]


def test_norm_by_hand() -> None:
    x, one = np.array([[[3.0, 4.0]]]), np.array([[[1.0, 0.0]]])
    keep = {"rotary_dim": 2, "eps": 0.0, "neox": True}
    normed = reference.qk_norm_mrope(x, np.array([1.0, 2.0]), one, None, **keep)
    rms = math.sqrt(12.5)
    assert np.allclose(normed, [3 / rms, 8 / rms])


@pytest.mark.parametrize(("neox", "turned"), [(True, [-3, 2, 1, 4]), (False, [-2, 1, 3, 4])], ids=["neox", "gptj"])
def test_a_quarter_turn_of_the_first_pair(neox: bool, turned: list[int]) -> None:
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    got = reference.qk_norm_mrope(
        x, np.ones(4), np.array([[[0.0, 1.0, 1.0, 0.0]]]), None, rotary_dim=4, eps=0.0, neox=neox
    )
    assert np.allclose(got * math.sqrt(7.5), turned)


def compare_with_transformers(rotary, norm, apply, config, section, layout, gemma, yarn, seed) -> float:
    """Largest error of the reference against the model's own modules, run in float64 but for transformers' angles."""
    random = np.random.default_rng(seed)
    dim = config.head_dim
    rotary_dim = 2 * rotary.inv_freq.shape[0]
    tokens, heads = 6, 3
    positions = random.integers(0, 200, (3, tokens))
    x = random.standard_normal((tokens, heads, dim))
    weight = random.standard_normal(dim)
    cos, sin = rotary(torch.zeros(1, dtype=torch.float64), torch.from_numpy(positions)[:, None])
    norm.weight.data = torch.from_numpy(weight)
    eps = getattr(norm, "variance_epsilon", None) or norm.eps
    # the model's norm works in float32; turned is the same norm in float64
    x64 = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)
    assert np.allclose(norm(torch.from_numpy(x)).detach(), x64 * (weight + gemma), atol=1e-5)
    q = (torch.from_numpy(x64) * (torch.from_numpy(weight) + gemma)).transpose(0, 1)[None]
    want = apply(q, q, cos, sin)[0][0].transpose(0, 1).numpy()

    frequencies = reference.inverse_frequencies(rotary_dim, config.rope_parameters["rope_theta"], yarn)
    angle = positions.T[..., None] * frequencies
    cos_sin = np.concatenate([np.cos(angle), np.sin(angle)], -1) * yarn.attention_factor
    got = reference.qk_norm_mrope(
        x,
        weight + gemma,
        cos_sin,
        axis_map(section, layout, rotary_dim),
        rotary_dim=rotary_dim,
        eps=eps,
        neox=True,
    )
    return float(np.abs(got - want).max() / np.abs(want).max())


def rope(factor: float, section: list[int], base: float, **more: object) -> dict[str, object]:
    parameters = {"rope_theta": base, "mrope_section": section, "rope_type": "default", **more}
    if factor > 1:
        parameters |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 128}
    return parameters


FACTORS = st.sampled_from([1.0, 2.0, 4.0])


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([[24, 20, 20], [22, 21, 21], [32, 16, 16], [64, 0, 0]]),
    FACTORS,
    st.sampled_from([1e4, 5e6]),
    st.integers(0, 99),
)
def test_agrees_with_qwen3_vl_moe(section: list[int], factor: float, base: float, seed: int) -> None:
    config = Qwen3VLMoeTextConfig(head_dim=128, rope_parameters=rope(factor, section, base, mrope_interleaved=True),
                                  max_position_embeddings=512)  # fmt: skip
    yarn = reference.yarn_from_config(factor, rotary_dim=128, base=base, original_max_position=128)
    error = compare_with_transformers(
        Qwen3VLMoeTextRotaryEmbedding(config), Qwen3VLMoeTextRMSNorm(128), apply_rotary_pos_emb, config, section,
        "interleaved", False, yarn, seed,
    )  # fmt: skip
    assert error < 200 * ANGLE_ERROR


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_agrees_with_qwen3_5_partial_rotary(factor: float) -> None:
    config = Qwen3_5TextConfig(
        head_dim=256, max_position_embeddings=512,
        rope_parameters=rope(factor, [11, 11, 10], 1e7, mrope_interleaved=True, partial_rotary_factor=0.25),
    )  # fmt: skip
    yarn = reference.yarn_from_config(factor, rotary_dim=64, base=1e7, original_max_position=128)
    error = compare_with_transformers(
        Qwen3_5TextRotaryEmbedding(config), Qwen3_5RMSNorm(256), apply_partial, config, [11, 11, 10], "interleaved",
        True, yarn, 5,
    )  # fmt: skip
    assert error < 200 * ANGLE_ERROR


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_agrees_with_qwen2_vl_sections(factor: float) -> None:
    config = Qwen2VLTextConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=512,
        rope_parameters=rope(factor, [16, 24, 24], 1e6),
    )  # fmt: skip
    config.head_dim = 128
    yarn = reference.yarn_from_config(factor, rotary_dim=128, base=1e6, original_max_position=128)
    rotary = Qwen2VLRotaryEmbedding(config)
    error = compare_with_transformers(
        rotary, Qwen3VLMoeTextRMSNorm(128), apply_rotary_pos_emb, config, [16, 24, 24], "sectioned", False, yarn, 9
    )
    assert error < 200 * ANGLE_ERROR


def test_a_wrong_layout_does_not_agree_with_qwen3_vl_moe() -> None:
    config = Qwen3VLMoeTextConfig(head_dim=128, rope_parameters=rope(1.0, [24, 20, 20], 1e4, mrope_interleaved=True))
    error = compare_with_transformers(
        Qwen3VLMoeTextRotaryEmbedding(config), Qwen3VLMoeTextRMSNorm(128), apply_rotary_pos_emb, config, [24, 20, 20],
        "sectioned", False, reference.Yarn(), 3,
    )  # fmt: skip
    assert error > 0.1
