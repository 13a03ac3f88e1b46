"""A storage hit ends at a page where all pools are whole: the longest such end, found by trying every subset of files."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import fill, kv_indices, kv_pool, mamba_pool, mamba_transfer, storage
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

PAGES = 8
KEYS = [f"key{number}" for number in range(1, PAGES + 1)]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Eight stored pages of KV and an indexer, and a recurrent state at each; `keep` removes what is not listed."""
    kv, state, indexer = kv_pool(PAGES), mamba_pool(PAGES, side_states=True), mamba_pool(PAGES, side_states=True)
    backend = storage(tmp_path, monkeypatch, kv=kv, mamba=state)
    backend.register_mem_host_pool_v2(indexer, PoolName.INDEXER)
    for pool in (kv, state, indexer):
        fill(pool, PAGES, seed=1)
    assert all(backend.batch_set_v1(KEYS, kv_indices(KEYS)))
    backend.batch_set_v2([mamba_transfer(KEYS)])
    transfer = mamba_transfer(KEYS)
    transfer.name = PoolName.INDEXER
    backend.batch_set_v2([transfer])
    return backend


def answer(store, monkeypatch, *, indexer, states, kv=PAGES, reverse=False, window=1):
    """What is reported when only these pages are stored (numbers from 1)."""
    have = {PoolName.INDEXER: set(indexer), PoolName.MAMBA: set(states), None: set(range(1, kv + 1))}

    def exists(keys, sizes):
        found = []
        for key in keys:
            number = int(key.split("_")[0].removeprefix("key"))
            pool = next((name for name in (PoolName.INDEXER, PoolName.MAMBA) if str(name) in key), None)
            found.append(number in have[pool])
        return found

    monkeypatch.setattr(store, "_query_keys_exist", exists)
    wanted = [
        PoolTransfer(PoolName.INDEXER, keys=["?"], hit_policy=PoolHitPolicy.ALL_PAGES),
        PoolTransfer(PoolName.MAMBA, keys=["?"] * window, hit_policy=PoolHitPolicy.TRAILING_PAGES),
    ]
    return store.batch_exists_v2(KEYS, wanted[::-1] if reverse else wanted)


def hit(store, monkeypatch, **stored):
    return answer(store, monkeypatch, **stored).kv_hit_pages


@pytest.mark.parametrize("reverse", [False, True])
def test_a_state_before_the_missing_page_is_found(store, monkeypatch, reverse):
    assert hit(store, monkeypatch, indexer=[1, 2, 3, 4, 5, 6, 8], states=[5, 8], reverse=reverse) == 5


def test_whole_pools_hit_whole(store, monkeypatch):
    assert hit(store, monkeypatch, indexer=range(1, 9), states=[8]) == 8


@pytest.mark.parametrize("window", [1, 2])
def test_every_answer_is_the_longest_end_that_all_pools_have(store, monkeypatch, window):
    choose = random.Random(7)
    for _ in range(200):
        kv = choose.randrange(0, PAGES + 1)
        indexer = {page for page in range(1, PAGES + 1) if choose.random() < 0.8}
        states = {page for page in range(1, PAGES + 1) if choose.random() < 0.5}
        right = [
            end
            for end in range(1, kv + 1)
            if indexer >= set(range(1, end + 1)) and states >= set(range(max(1, end - window + 1), end + 1))
        ]
        told = answer(store, monkeypatch, indexer=indexer, states=states, kv=kv, window=window)
        case = (kv, sorted(indexer), sorted(states))
        assert told.kv_hit_pages == max(right, default=0), case
        if right:
            assert told.restorable_prefix_pages == right, case


def test_ranks_agree_on_a_prefix_that_each_of_them_has(store, monkeypatch):
    """One rank has states at 3, 5 and 8, the other at 3 and 7: the minimum of their longest, 7, is on one only."""
    found = [answer(store, monkeypatch, indexer=range(1, 9), states=states) for states in ([3, 5, 8], [3, 7])]
    assert [result.kv_hit_pages for result in found] == [8, 7]
    operations = [
        SimpleNamespace(
            token_ids=list(range(PAGES)),
            pool_transfers=[mamba_transfer(KEYS[-1:])],
            pool_storage_result=result,
            query_pool_hit_pages={},
        )
        for result in found
    ]
    for operation in operations:
        operation.pool_transfers[0].hit_policy = PoolHitPolicy.TRAILING_PAGES
    sent = []

    def agreed(send):
        controller = SimpleNamespace(page_size=1, prefetch_hits_sync_groups=[], _all_reduce=send)
        return [
            HybridCacheController._sync_prefetch_hit_query(controller, operation, result.kv_hit_pages)
            for operation, result in zip(operations, found, strict=True)
        ]

    agreed(lambda packed, *_: sent.append(packed.clone()))
    assert agreed(lambda packed, *_: packed.copy_(torch.stack(sent).amin(0))) == [3, 3]
