"""Recurrent-state pools with side states never take the zero-copy path, which cannot carry them."""

import sys
from pathlib import Path

import pytest
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import (
    fill,
    kv_indices,
    kv_pool,
    mamba_pool,
    mamba_transfer,
    needs_nixl,
    pages_equal,
    storage,
    stored_files,
    wipe,
)

pytestmark = needs_nixl

KEYS = ["a", "b", "c"]


def test_side_states_survive_buffered_storage(tmp_path, monkeypatch):
    kv, pool = kv_pool(3), mamba_pool(3, side_states=True)
    store = storage(tmp_path, monkeypatch, kv=kv, mamba=pool, direct=False)
    expected = fill(pool, 3, seed=1)
    assert pool.slot_state_buffers[0].any(), "the side states must differ from a wiped page"
    assert all(store.batch_set_v1(KEYS, kv_indices(KEYS)))
    assert store.batch_set_v2([mamba_transfer(KEYS)]) == {PoolName.MAMBA: [True] * 3}
    wanted = [PoolTransfer(PoolName.MAMBA, keys=["c"], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
    assert store.batch_exists_v2(KEYS, wanted).kv_hit_pages == 3
    wipe(pool, 3)
    assert store.batch_get_v2([mamba_transfer(KEYS)]) == {PoolName.MAMBA: [True] * 3}
    assert pages_equal(pool, expected) == [True] * 3


@pytest.mark.parametrize("direct", [False, True])
def test_pools_without_side_states_still_go_zero_copy(tmp_path, monkeypatch, direct):
    pool = mamba_pool(3, aligned=True)
    store = storage(tmp_path, monkeypatch, mamba=pool, direct=direct)
    expected = fill(pool, 3, seed=1)
    assert store.batch_set_v2([mamba_transfer(KEYS)]) == {PoolName.MAMBA: [True] * 3}
    assert {path.name.rsplit("mamba_")[1] for path in stored_files(tmp_path)} == {"temporal", "conv_0"}
    wipe(pool, 3)
    assert store.batch_get_v2([mamba_transfer(KEYS)]) == {PoolName.MAMBA: [True] * 3}
    assert pages_equal(pool, expected) == [True] * 3
