"""Storage stays within its bytes, loses the end of an unused prefix first, and is looked after by a process of its own."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import fill, kv_indices, kv_pool, mamba_pool, mamba_transfer, needs_nixl, pages_equal, storage, wipe
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName

pytestmark = needs_nixl

PAGE = 2 * 4096  # K and V
CHAINS = [[f"{name}{i}" for i in range(4)] for name in "abc"]


def indexed(folder, monkeypatch, **options):
    """Storage with the cleaner on, and no watermark unless one is given."""
    options = {"l3_cleaner_high_watermark": 101.0, "l3_cleaner_low_watermark": 100.0, **options}
    store = storage(folder, monkeypatch, l3_cleaner_enabled=True, **options)
    assert getattr(store, "page_index", None) is not None, "storage has no index of its pages"
    return store


def wait_for(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def stored_keys(folder):
    return sorted({path.name.partition("_")[0] for path in folder.glob("[0-9a-f][0-9a-f]/*")})


def used(folder, chain):
    """Whether the files of a prefix were touched: the first page's last."""
    times = [min(path.stat().st_mtime_ns for path in folder.glob(f"[0-9a-f][0-9a-f]/{key}_*")) for key in chain]
    return times == sorted(times, reverse=True) and len(set(times)) == len(times)


def test_bytes_stay_within_the_limit_and_the_unused_end_goes_first(tmp_path, monkeypatch):
    pool = kv_pool(4)
    store = indexed(tmp_path, monkeypatch, l3_cleaner_max_bytes=7 * PAGE)
    store.register_mem_pool_host(pool)
    expected = {}
    for chain in CHAINS[:2]:
        expected[chain[0]] = fill(pool, 4, seed=len(expected))
        for i in (0, 2):
            extra = HiCacheStorageExtraInfo(prefix_keys=chain[:i])
            indices = kv_indices(chain)[i * pool.page_size : (i + 2) * pool.page_size]
            assert store.batch_set_v1(chain[i : i + 2], indices, extra) == [True] * 2
    wait_for(lambda: len(stored_keys(tmp_path)) == 7, "the limit was not kept")
    assert stored_keys(tmp_path) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    assert store.batch_exists(CHAINS[0]) == 3, "and now a is the one in use"
    expected["c0"] = fill(pool, 4, seed=2)
    store.batch_set_v1(CHAINS[2][:2], kv_indices(CHAINS[2][:2]))
    wait_for(lambda: len(stored_keys(tmp_path)) == 7, "the limit was not kept")
    wait_for(lambda: stored_keys(tmp_path) == ["a0", "a1", "a2", "b0", "b1", "c0", "c1"], stored_keys(tmp_path))
    for name, pages in (("a", 3), ("b", 2), ("c", 2)):
        wipe(pool, 4)
        keys = [f"{name}{i}" for i in range(pages)]
        assert store.batch_get_v1(keys, kv_indices(keys)) == [True] * pages
        assert pages_equal(pool, expected[f"{name}0"])[:pages] == [True] * pages
    store.close()


def test_a_page_goes_with_its_state(tmp_path, monkeypatch):
    kv, states = kv_pool(4), mamba_pool(4)
    store = indexed(tmp_path, monkeypatch, l3_cleaner_max_bytes=3 * PAGE)
    store.register_mem_pool_host(kv)
    store.register_mem_host_pool_v2(states, PoolName.MAMBA)
    fill(kv, 4, seed=1), fill(states, 4, seed=2)
    chain = CHAINS[0]
    assert store.batch_set_v2([mamba_transfer(chain[3:])]) == {"mamba": [True]}
    assert store.batch_set_v1(chain, kv_indices(chain)) == [True] * 4
    wait_for(lambda: stored_keys(tmp_path) == chain[:3], "the limit was not kept")
    assert not list(tmp_path.glob("*/*mamba*")), "a state without its page"
    store.close()


def test_pages_above_the_watermark_go(tmp_path, monkeypatch):
    pool = kv_pool(4)
    store = indexed(tmp_path, monkeypatch, l3_cleaner_high_watermark=1e-9, l3_cleaner_low_watermark=0.0)
    store.register_mem_pool_host(pool)
    store.batch_set_v1(CHAINS[0], kv_indices(CHAINS[0]))
    store.close()
    store = indexed(tmp_path, monkeypatch, l3_cleaner_high_watermark=1e-9, l3_cleaner_low_watermark=0.0)
    wait_for(lambda: stored_keys(tmp_path) == [], "above the mark everything is too much")
    store.close()


def test_a_process_that_was_killed_is_replaced_and_loses_no_page(tmp_path, monkeypatch):
    pool = kv_pool(4)
    store = indexed(tmp_path, monkeypatch, l3_cleaner_max_bytes=6 * PAGE)
    store.register_mem_pool_host(pool)
    store.batch_set_v1(CHAINS[0], kv_indices(CHAINS[0]))
    wait_for(lambda: store.page_index._child, "no process")
    # It has heard of this prefix when its files say that the first page was used last.
    wait_for(lambda: used(tmp_path, CHAINS[0]), "no file was touched")
    os.kill(store.page_index._child.pid, signal.SIGKILL)
    store.page_index._child.wait()
    store.batch_set_v1(CHAINS[1], kv_indices(CHAINS[1]))
    wait_for(lambda: len(stored_keys(tmp_path)) == 6, "nobody keeps the limit any more")
    assert [store.batch_exists(chain) for chain in CHAINS[:2]] == [2, 4]
    child = store.page_index._child
    store.close()
    assert child.returncode == 0, "the process ends with its storage"


@pytest.mark.parametrize(
    "options",
    [
        {"l3_cleaner_max_bytes": 0},
        {"l3_cleaner_max_bytes": "500GB"},
        {"l3_cleaner_max_bytes": True},
        {"l3_cleaner_shared_max_bytes": 1 << 30},
        {"l3_cleaner_shared_dirs": "/nvme/*"},
        {"l3_cleaner_shared_dirs": 5, "l3_cleaner_shared_max_bytes": 1 << 30},
        {"l3_cleaner_index": "yes"},
        {"l3_cleaner_low_watermark": 90.0, "l3_cleaner_high_watermark": 80.0},
    ],
)
def test_limits_that_say_nothing_are_refused(tmp_path, monkeypatch, options):
    with pytest.raises(ValueError, match="l3_cleaner|low_watermark"):
        indexed(tmp_path, monkeypatch, **options)


def test_without_an_index_pages_go_by_age_as_before(tmp_path, monkeypatch):
    store = storage(tmp_path, monkeypatch, l3_cleaner_enabled=True, l3_cleaner_index=False)
    assert store._l3_cleaner is not None and store.page_index is None
    store.close()
