"""Transfers of more pages than the bounce buffer has slots must arrive whole, on real files through real NIXL."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import (
    PAGE_SIZE,
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


@pytest.mark.parametrize("pages", [1, 128, 129, 220])
def test_mamba_pages_round_trip(tmp_path, monkeypatch, pages):
    pool = mamba_pool(pages)
    store = storage(tmp_path, monkeypatch, mamba=pool)
    expected = fill(pool, pages, seed=pages)
    keys = [f"k{i}" for i in range(pages)]
    assert store.batch_set_v2([mamba_transfer(keys)]) == {"mamba": [True] * pages}
    wipe(pool, pages)
    assert store.batch_get_v2([mamba_transfer(keys)]) == {"mamba": [True] * pages}
    assert pages_equal(pool, expected) == [True] * pages


@pytest.mark.parametrize("pages", [128, 129, 220])
def test_kv_pages_round_trip(tmp_path, monkeypatch, pages):
    pool = kv_pool(pages, layout="layer_first")
    store = storage(tmp_path, monkeypatch, kv=pool)
    expected = fill(pool, pages, seed=pages)
    keys = [f"k{i}" for i in range(pages)]
    assert store.batch_set_v1(keys, kv_indices(keys)) == [True] * pages
    wipe(pool, pages)
    assert store.batch_get_v1(keys, kv_indices(keys)) == [True] * pages
    assert pages_equal(pool, expected) == [True] * pages


@pytest.mark.parametrize("lost", [0, 127, 128, 150, 219])
def test_get_reports_the_prefix_that_arrived(tmp_path, monkeypatch, lost):
    pages = 220
    pool = kv_pool(pages, layout="layer_first")
    store = storage(tmp_path, monkeypatch, kv=pool)
    expected = fill(pool, pages, seed=3)
    keys = [f"k{i}" for i in range(pages)]
    assert all(store.batch_set_v1(keys, kv_indices(keys)))
    Path(store.file_manager.get_file_path(store._get_suffixed_key(keys[lost]))).unlink()
    wipe(pool, pages)
    results = store.batch_get_v1(keys, kv_indices(keys))
    assert len(results) == pages
    prefix = results.index(False)
    assert not any(results[prefix:]), "a page after the first gap was reported as present"
    assert prefix <= lost and prefix >= (lost // 128) * 128
    assert all(pages_equal(pool, expected)[:prefix])


def test_set_reports_what_was_stored(tmp_path, monkeypatch):
    pages = 220
    pool = kv_pool(pages, layout="layer_first")
    store = storage(tmp_path, monkeypatch, kv=pool)
    fill(pool, pages, seed=4)
    keys = [f"k{i}" for i in range(pages)]
    # A folder under the name of a page makes storing that page fail.
    Path(store.file_manager.get_file_path(store._get_suffixed_key(keys[150]))).mkdir()
    results = store.batch_set_v1(keys, kv_indices(keys))
    assert len(results) == pages and results[:128] == [True] * 128 and not results[150]
    stored = {path.name for path in stored_files(tmp_path)}
    assert all(store._get_suffixed_key(key) in stored for key, ok in zip(keys, results, strict=True) if ok)


def test_mismatched_indices_are_refused(tmp_path, monkeypatch):
    pool = kv_pool(200, layout="layer_first")
    store = storage(tmp_path, monkeypatch, kv=pool)
    keys = [f"k{i}" for i in range(150)]
    for wrong in (torch.arange(149 * PAGE_SIZE), torch.arange(200 * PAGE_SIZE)):
        assert store.batch_set_v1(keys, wrong) == [False] * 150
        assert store.batch_get_v1(keys, wrong) == [False] * 150
    assert stored_files(tmp_path) == []


def test_bounce_buffers_do_not_grow_with_the_page(tmp_path, monkeypatch):
    """128 slots of a 59 MB recurrent state would be 7.5 GB per direction, faulted in at start-up."""
    asked = []

    def fake_alloc(dims, dtype):
        asked.append(dims[0] * dims[1] * dtype.itemsize)
        return torch.zeros(1, dtype=dtype)

    import sglang.srt.mem_cache.storage.nixl.hicache_nixl as module

    store = storage(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "alloc_mmap", fake_alloc)
    store._alloc_registered(59_019_280, torch.uint8, False, "probe")
    store._alloc_registered(3 << 30, torch.uint8, False, "probe")
    assert asked[0] <= 1 << 30 and asked[1] == 3 << 30


@pytest.mark.parametrize("direction", ["get", "set"])
def test_a_part_of_a_transfer_keeps_its_other_fields(tmp_path, monkeypatch, direction):
    pages = 130
    pool = mamba_pool(pages)
    store = storage(tmp_path, monkeypatch, mamba=pool)
    if not hasattr(store, f"_{direction}_pool_pages"):
        pytest.fail("transfers are not split")
    parts = []

    def record(transfer, *_):
        parts.append(transfer)
        return [True] * len(transfer.keys)

    monkeypatch.setattr(store, f"_{direction}_pool_pages", record)
    whole = dataclasses.replace(
        mamba_transfer([f"k{i}" for i in range(pages)]), hit_policy=PoolHitPolicy.TRAILING_PAGES, nodes_to_load=[1]
    )
    getattr(store, f"batch_{direction}_v2")([whole])
    assert len(parts) > 1 and sorted(key for part in parts for key in part.keys) == sorted(whole.keys)
    assert all(part.hit_policy == whole.hit_policy and part.nodes_to_load == [1] for part in parts)
