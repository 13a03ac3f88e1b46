"""A host size is split by the slots that a host mirrors: what verification keeps on the device takes no share."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import types

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _split_hicache_size
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

SLOTS, LAYERS = 24, [0, 1, 2]


def pool(drafts=None, *, running=4, side=False):
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=4 * 64, n_groups=2, num_heads=4, head_dim=64, state_size=64, conv_kernel=4
    )
    dtype = Mamba2StateDType(conv=torch.float16, temporal=torch.float32)
    made = HybridReqToTokenPool(
        size=running,
        mamba_size=SLOTS,
        mamba_spec_state_size=running,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=LAYERS, dtype=dtype),
        mamba_layer_ids=LAYERS,
        enable_mamba_extra_buffer=True,
        speculative_num_draft_tokens=drafts,
        speculative_eagle_topk=1,
        short_conv_layer_ids=[0] if side else None,
        short_conv_state_shape=(160, 9) if side else None,
        ngram_context_len=2 if side else 0,
        ngram_eos_token_id=0,
    )
    return made.mamba_pool


def host_gb(mamba):
    """What the states get of 32 GB beside KV pools of a fixed size."""
    kv = types.SimpleNamespace(get_kv_size_bytes=lambda: (10**8, 10**8))
    return _split_hicache_size(32, (kv, mamba))[1]


@pytest.mark.parametrize("drafts", [2, 4, 8])
@pytest.mark.parametrize("running", [1, 16])
def test_drafts_and_requests_take_no_share_of_the_host(drafts, running):
    assert host_gb(pool(drafts, running=running)) == host_gb(pool())


@pytest.mark.parametrize("side", [False, True], ids=["plain", "side_states"])
def test_the_share_is_that_of_the_buffers_that_are_copied(side):
    mamba = pool(4, side=side)
    (info,) = mamba.get_device_pool_infos()
    states = info.buffer_info
    copied = [*states.conv, states.temporal, *states.extra_checkpoint_buffers]
    assert len(copied) == (4 if side else 2)
    assert mamba.get_kv_size_bytes() == sum(x.numel() * x.element_size() for x in copied)
    assert host_gb(mamba) == 32 * mamba.get_kv_size_bytes() / (2 * 10**8 + mamba.get_kv_size_bytes())
