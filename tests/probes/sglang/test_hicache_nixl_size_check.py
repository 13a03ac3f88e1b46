"""A page file counts as stored only at its full size; any other file is a miss and is removed."""

import os
import sys
from pathlib import Path

import pytest
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import fill, kv_indices, kv_pool, mamba_pool, mamba_transfer, needs_nixl, pages_equal, storage, wipe

pytestmark = needs_nixl

SIZES = [0, 1, 4095, 4097, 8192]  # of a 4096-byte page


def kv_store(tmp_path, monkeypatch, layout):
    pool = kv_pool(4, layout=layout, head_dim=128 if layout == "page_first" else 64)
    store = storage(tmp_path, monkeypatch, kv=pool)
    expected = fill(pool, 4, seed=1)
    keys = ["a", "b", "c", "d"]
    assert store.batch_set_v1(keys, kv_indices(keys)) == [True] * 4
    assert store.batch_exists(keys) == 4
    return pool, store, expected, keys


def path_of(store, key):
    path = Path(store.file_manager.get_file_path(key))
    assert path.stat().st_size == 4096
    return path


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout, suffix", [("page_first", "_v"), ("layer_first", "")])
def test_kv_page_of_a_wrong_size_is_a_miss(tmp_path, monkeypatch, layout, suffix, size):
    pool, store, expected, keys = kv_store(tmp_path, monkeypatch, layout)
    damaged = path_of(store, store._get_suffixed_key("c") + suffix)
    os.truncate(damaged, size)
    assert store.batch_exists(keys) == 2
    assert not damaged.exists()
    wipe(pool, 4)
    assert store.batch_get_v1(keys, kv_indices(keys))[2] is False
    # Storing it again heals it.
    for page, data in enumerate(expected):
        pool.set_from_flat_data_page(page * pool.page_size, data)
    assert store.batch_set_v1(keys, kv_indices(keys)) == [True] * 4
    wipe(pool, 4)
    assert store.batch_get_v1(keys, kv_indices(keys)) == [True] * 4
    assert pages_equal(pool, expected) == [True] * 4


def test_query_during_a_write_does_not_lose_the_page(tmp_path, monkeypatch):
    """Another thread asks for a page that is half written: a miss, and the page is there afterwards."""
    pool, store, expected, _ = kv_store(tmp_path, monkeypatch, "page_first")
    transfer, seen = store.agent.transfer, []

    def transfer_and_query(request):
        seen.append(store.batch_exists(["new"]))
        return transfer(request)

    monkeypatch.setattr(store.agent, "transfer", transfer_and_query)
    assert store.batch_set_v1(["new"], kv_indices(["new"])) == [True]
    assert seen == [0]
    assert store.batch_exists(["new"]) == 1
    monkeypatch.undo()
    wipe(pool, 4)
    assert store.batch_get_v1(["new"], kv_indices(["new"])) == [True]
    assert pages_equal(pool, expected)[0]


@pytest.mark.parametrize("size", SIZES)
def test_file_that_changes_after_the_query(tmp_path, monkeypatch, size):
    pool, store, expected, keys = kv_store(tmp_path, monkeypatch, "page_first")
    os.truncate(path_of(store, store._get_suffixed_key("c") + "_k"), size)
    wipe(pool, 4)
    assert store.batch_get_v1(keys, kv_indices(keys)) == [True, True, False, False]
    assert pages_equal(pool, expected)[:2] == [True, True]


@pytest.mark.parametrize("lost", range(4))
def test_get_returns_the_pages_before_a_missing_file(tmp_path, monkeypatch, lost):
    pool, store, expected, keys = kv_store(tmp_path, monkeypatch, "layer_first")
    path_of(store, store._get_suffixed_key(keys[lost])).unlink()
    wipe(pool, 4)
    assert store.batch_get_v1(keys, kv_indices(keys)) == [True] * lost + [False] * (4 - lost)
    assert pages_equal(pool, expected)[:lost] == [True] * lost


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("aligned, suffix", [(True, "_temporal"), (True, "_conv_0"), (False, "")])
def test_side_state_of_a_wrong_size_is_a_miss(tmp_path, monkeypatch, aligned, suffix, size):
    kv, mamba = kv_pool(3), mamba_pool(3, aligned=aligned)
    store = storage(tmp_path, monkeypatch, kv=kv, mamba=mamba)
    fill(kv, 3, seed=1)
    fill(mamba, 3, seed=2)
    keys = ["a", "b", "c"]
    assert all(store.batch_set_v1(keys, kv_indices(keys)))
    assert store.batch_set_v2([mamba_transfer(keys)]) == {PoolName.MAMBA: [True] * 3}
    wanted = [PoolTransfer(PoolName.MAMBA, keys=["c"], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
    assert store.batch_exists_v2(keys, wanted).kv_hit_pages == 3
    damaged = path_of(store, store._get_suffixed_key("c", PoolName.MAMBA) + "_mamba" + suffix)
    os.truncate(damaged, size)
    assert store.batch_exists_v2(keys, wanted).kv_hit_pages == 2
    assert not damaged.exists()
    assert store.batch_get_v2([mamba_transfer(keys)])[PoolName.MAMBA][2] is False


def test_file_that_cannot_be_removed_is_still_a_miss(tmp_path, monkeypatch):
    _, store, _, keys = kv_store(tmp_path, monkeypatch, "page_first")
    damaged = path_of(store, store._get_suffixed_key("b") + "_k")
    os.truncate(damaged, 100)

    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", refuse)
    assert store.batch_exists(keys) == 1
    assert damaged.exists()
