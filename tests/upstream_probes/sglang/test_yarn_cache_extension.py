"""Extending a YaRN cos/sin cache gives the rows that a longer cache has from the start (sglang#38786)."""

import pytest
import torch
from sglang.srt.layers.rotary_embedding.yarn import YaRNScalingRotaryEmbedding


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_extended_rows_continue_the_cache(factor):
    rope = YaRNScalingRotaryEmbedding(64, 64, 128, 10000, True, factor, torch.float32)
    trained = rope.cos_sin_cache.shape[0]
    rope._ensure_cos_sin_cache_length(trained + 10)
    assert rope.cos_sin_cache.shape[0] > trained
    positions = torch.arange(rope.cos_sin_cache.shape[0], dtype=torch.float32)
    angles = torch.outer(positions, rope._compute_inv_freq(factor))
    expected = torch.cat((angles.cos(), angles.sin()), dim=-1) * rope.mscale
    torch.testing.assert_close(rope.cos_sin_cache, expected, rtol=1e-5, atol=1e-5)
