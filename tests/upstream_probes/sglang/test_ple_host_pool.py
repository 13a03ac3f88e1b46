"""PLE side states travel with the recurrent state through the host tier and its pages (sglang#39862)."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

SLOTS = 7
SAVED = torch.tensor([2, 5])
ON_HOST = torch.tensor([4, 1])
RESTORED = torch.tensor([6, 3])


def device_pool():
    """Upstream's own pool: two recurrent layers, a short convolution and three n-gram tokens a slot."""
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=128, n_groups=2, num_heads=4, head_dim=32, state_size=16, conv_kernel=4
    )
    return HybridReqToTokenPool(
        size=2,
        mamba_size=SLOTS - 1,
        mamba_spec_state_size=2,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(
            shape=shape, layers=[0, 1], dtype=Mamba2StateDType(conv=torch.float16, temporal=torch.float32)
        ),
        mamba_layer_ids=[0, 1],
        enable_mamba_extra_buffer=False,
        speculative_num_draft_tokens=None,
        short_conv_layer_ids=[0],
        short_conv_state_shape=(8, 9),
        ngram_context_len=3,
        ngram_eos_token_id=0,
    )


def states(pool):
    """Every tensor that belongs to a slot, slots first."""
    cache = pool.mamba_pool.mamba_cache
    recurrent = [cache.temporal.transpose(0, 1), *(conv.transpose(0, 1) for conv in cache.conv)]
    return [*recurrent, pool.short_conv_pool.conv_state[0], pool.ngram_pool.context]


def fill(pool):
    """Each slot's rows are its number plus 10, which tells slots apart and from zero."""
    for tensor in states(pool):
        for slot in range(SLOTS):
            tensor[slot] = slot + 10


def host_pool(pool, layout):
    (info,) = pool.mamba_pool.get_device_pool_infos()
    return MambaPoolHost(info.buffer_info, 1.0, 0, device_capacity=SLOTS, pin_memory=False, layout=layout)


def expect(pool, slots, values):
    for number, tensor in enumerate(states(pool)):
        for slot, value in zip(slots.tolist(), values, strict=True):
            assert (tensor[slot] == value).all(), f"state {number}, slot {slot}: {tensor[slot].unique().tolist()}"


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_a_restored_slot_has_its_side_states(layout):
    pool = device_pool()
    fill(pool)
    host = host_pool(pool, layout)
    host.backup_from_device_all_layer(pool.mamba_pool, ON_HOST, SAVED, "kernel_ascend")
    for tensor in states(pool):
        tensor[SAVED] = -1  # the next occupant
    for layer in range(2):
        host.load_to_device_per_layer(pool.mamba_pool, ON_HOST, RESTORED, layer, "kernel_ascend")
    expect(pool, RESTORED, [12, 15])
    expect(pool, torch.tensor([4]), [14])


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_side_states_are_there_before_the_first_layer_is_announced(layout):
    pool = device_pool()
    fill(pool)
    host = host_pool(pool, layout)
    host.backup_from_device_all_layer(pool.mamba_pool, ON_HOST, SAVED, "kernel_ascend")
    host.load_to_device_per_layer(pool.mamba_pool, ON_HOST, RESTORED, 0, "kernel_ascend")
    assert pool.ngram_pool.context[RESTORED].tolist() == [[12] * 3, [15] * 3]


def test_a_storage_page_carries_them():
    pool = device_pool()
    fill(pool)
    host = host_pool(pool, "page_first")
    host.backup_from_device_all_layer(pool.mamba_pool, ON_HOST, SAVED, "kernel_ascend")
    page = host.get_data_page(4).clone()
    assert page.numel() * page.element_size() == host.get_size_per_token()
    host.set_from_flat_data_page(0, page)
    host.load_to_device_per_layer(pool.mamba_pool, torch.tensor([0]), torch.tensor([1]), 0, "kernel_ascend")
    host.load_to_device_per_layer(pool.mamba_pool, torch.tensor([0]), torch.tensor([1]), 1, "kernel_ascend")
    expect(pool, torch.tensor([1]), [12])
