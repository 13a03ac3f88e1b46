"""ReplaySSM verification never commits PLE side states, so a pool with both must be refused."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

PLE = dict(short_conv_layer_ids=[0], short_conv_state_shape=(8, 9), ngram_context_len=2, ngram_eos_token_id=0)


def build(**changes):
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=4 * 64, n_groups=2, num_heads=4, head_dim=64, state_size=64, conv_kernel=4
    )
    arguments = dict(
        size=2,
        mamba_size=6,
        mamba_spec_state_size=2,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(
            shape=shape, layers=[0, 1], dtype=Mamba2StateDType(conv=torch.float16, temporal=torch.float32)
        ),
        mamba_layer_ids=[0, 1],
        enable_mamba_extra_buffer=False,
        speculative_num_draft_tokens=4,
        enable_linear_replayssm_spec=False,
    )
    return HybridReqToTokenPool(**arguments | changes)


@pytest.mark.parametrize(
    "side_states",
    [PLE, {**PLE, "ngram_context_len": 0}, {**PLE, "short_conv_layer_ids": [], "short_conv_state_shape": None}],
    ids=["both", "short_conv", "ngram"],
)
def test_replay_verify_with_ple_side_states_is_refused(side_states):
    with pytest.raises(ValueError, match="PLE side states"):
        build(enable_linear_replayssm_spec=True, **side_states)


def test_replay_verify_without_ple_is_still_built():
    pool = build(enable_linear_replayssm_spec=True)
    assert pool.mamba_pool.mamba_cache.intermediate_ssm is None


def test_ple_without_replay_is_still_built():
    pool = build(**PLE)
    assert pool.short_conv_pool.enabled and pool.ngram_pool.enabled
    assert pool.mamba_pool.mamba_cache.intermediate_ssm is not None
