"""Ranks that hold different bytes of a page never share a key: pipeline stages, context-parallel and tensor ranks."""

import sys
from itertools import product
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import nixl_storage
from nixl_storage import fill, kv_indices, kv_pool, mamba_pool, mamba_transfer, pages_equal, storage, stored_files, wipe
from sglang.srt.mem_cache.hicache_storage import PoolName

KEYS = ["a", "b"]


def rank(tmp_path, monkeypatch, *, kv=None, mamba=None, mla=False, **place):
    """A storage whose server sits at `place` (tp_rank, pp_rank, attn_cp_rank and the sizes)."""
    whole = nixl_storage.HiCacheStorageConfig
    monkeypatch.setattr(
        nixl_storage,
        "HiCacheStorageConfig",
        lambda **given: whole(**{**given, **place, "is_mla_model": mla}),
    )
    try:
        return storage(tmp_path, monkeypatch, kv=kv, mamba=mamba)
    finally:
        monkeypatch.setattr(nixl_storage, "HiCacheStorageConfig", whole)


@pytest.mark.parametrize("axis", ["pp", "attn_cp"])
def test_two_ranks_store_and_get_their_own_pages(tmp_path, monkeypatch, axis):
    pools, expected, stores = [], [], []
    for number in range(2):
        kv, mamba = kv_pool(2), mamba_pool(2, side_states=True)
        place = {f"{axis}_rank": number, f"{axis}_size": 2}
        stores.append(rank(tmp_path, monkeypatch, kv=kv, mamba=mamba, **place))
        pools.append((kv, mamba))
        expected.append((fill(kv, 2, seed=10 + number), fill(mamba, 2, seed=20 + number)))
        assert all(stores[-1].batch_set_v1(KEYS, kv_indices(KEYS)))
        assert stores[-1].batch_set_v2([mamba_transfer(KEYS)]) == {PoolName.MAMBA: [True] * 2}
    alone = len(stored_files(tmp_path))
    for (kv, mamba), (pages, states), store in zip(pools, expected, stores, strict=True):
        wipe(kv, 2), wipe(mamba, 2)
        assert all(store.batch_get_v1(KEYS, kv_indices(KEYS)))
        assert store.batch_get_v2([mamba_transfer(KEYS)]) == {PoolName.MAMBA: [True] * 2}
        assert pages_equal(kv, pages) == pages_equal(mamba, states) == [True] * 2
    # K and V of two pages and two whole states, of each rank.
    assert alone == 2 * (2 * 2 + 2)


@pytest.mark.parametrize("mla", [False, True])
def test_no_two_places_share_a_key(tmp_path, monkeypatch, mla):
    seen = {}
    for tp, pp, cp in product(range(2), repeat=3):
        place = dict(tp_rank=tp, tp_size=2, pp_rank=pp, pp_size=2, attn_cp_rank=cp, attn_cp_size=2)
        store = rank(tmp_path, monkeypatch, mla=mla, **place)
        for pool in (None, PoolName.MAMBA):
            # Replicated KV is one page for all tensor ranks; the state never is.
            owner = (pp, cp) if mla and pool is None else (tp, pp, cp)
            assert seen.setdefault(store._get_component_key("a", pool), (pool, owner)) == (pool, owner)
    assert len(seen) == (4 if mla else 8) + 8


def test_a_single_server_keeps_its_keys(tmp_path, monkeypatch):
    assert rank(tmp_path, monkeypatch)._get_component_key("a") == "a_m_0_1"
