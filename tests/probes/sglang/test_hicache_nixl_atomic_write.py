"""A page appears under its name only when it is complete, and a writer that is killed leaves nothing to be found."""

import os
import signal
import sys
import time
import types
from pathlib import Path

import pytest
from sglang.srt.mem_cache.storage.nixl.nixl_cleaner import HiCacheL3Cleaner

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


def every_file(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_no_page_is_visible_while_it_is_written(tmp_path, monkeypatch):
    pool = kv_pool(3)
    store = storage(tmp_path, monkeypatch, kv=pool)
    fill(pool, 3, seed=1)
    seen = []
    transfer = store.agent.transfer

    def observed(handle, *args):
        seen.append((stored_files(tmp_path), store.batch_exists(KEYS)))
        return transfer(handle, *args)

    monkeypatch.setattr(store.agent, "transfer", observed)
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert seen == [([], 0)]
    assert store.batch_exists(KEYS) == 3
    assert len(every_file(tmp_path)) == len(stored_files(tmp_path)) == 6


def test_failed_write_keeps_the_page_of_before(tmp_path, monkeypatch):
    pool = kv_pool(3)
    store = storage(tmp_path, monkeypatch, kv=pool)
    expected = fill(pool, 3, seed=1)
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    fill(pool, 3, seed=2)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_xfer_and_wait", lambda *_: False)
        assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [False] * 3
    assert len(every_file(tmp_path)) == 6, "a failed write left temporary files"
    wipe(pool, 3)
    assert store.batch_get_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert pages_equal(pool, expected) == [True] * 3


def test_reader_keeps_its_page_while_it_is_replaced(tmp_path, monkeypatch):
    pool = mamba_pool(3)
    store = storage(tmp_path, monkeypatch, mamba=pool)
    first = fill(pool, 3, seed=1)
    store.batch_set_v2([mamba_transfer(KEYS)])
    files = [(path, path.open("rb")) for path in stored_files(tmp_path)]
    before = [path.read_bytes() for path, _ in files]
    fill(pool, 3, seed=2)
    assert store.batch_set_v2([mamba_transfer(KEYS)]) == {"mamba": [True] * 3}
    assert [handle.read() for _, handle in files] == before, "a page changed under its reader"
    assert all(path.read_bytes() != old for (path, _), old in zip(files, before, strict=True))
    assert len(first) == 3


def test_results_are_per_page(tmp_path, monkeypatch):
    pool = kv_pool(3)
    store = storage(tmp_path, monkeypatch, kv=pool)
    fill(pool, 3, seed=1)
    # A folder in the way of one file of page b.
    Path(store.file_manager.get_file_path(store._get_suffixed_key("b") + "_v")).mkdir()
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True, False, True]


def test_kill_during_write_leaves_only_complete_pages(tmp_path, monkeypatch):
    pool = kv_pool(8, head_dim=32768)  # 1 MiB for K and V of each page
    keys = [f"k{i}" for i in range(8)]
    values = pool.kv_buffer.numpy()  # torch's threads do not survive the fork
    partial = 0
    for attempt in range(5):
        child = os.fork()
        if child == 0:
            try:
                store = storage(tmp_path, monkeypatch, kv=pool)
                for generation in range(10_000):
                    values.fill(generation + 1)
                    store.batch_set_v1(keys, kv_indices(keys))
            finally:
                os._exit(1)
        deadline = time.monotonic() + 20
        while len(stored_files(tmp_path)) < 16:
            assert time.monotonic() < deadline, "the writer made no progress"
            time.sleep(0.001)
        time.sleep(0.05 + 0.013 * attempt)
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        partial += len(every_file(tmp_path)) > len(stored_files(tmp_path))
        for path in stored_files(tmp_path):
            assert path.stat().st_size == 1 << 20, f"{path} is incomplete"
            data = path.read_bytes()
            assert data == data[:4] * (1 << 18), f"{path} mixes two writes"
    assert partial, "no writer was killed while it was writing"
    # The next process clears away what the killed ones left.
    storage(tmp_path, monkeypatch, kv=pool)
    assert every_file(tmp_path) == stored_files(tmp_path)


def test_living_writers_keep_their_temporary_files(tmp_path, monkeypatch):
    pool = kv_pool(3)
    first = storage(tmp_path, monkeypatch, kv=pool)
    fill(pool, 3, seed=1)
    transfer = first.agent.transfer

    def second_server_starts(handle, *args):
        storage(tmp_path, monkeypatch, kv=kv_pool(3))
        return transfer(handle, *args)

    monkeypatch.setattr(first.agent, "transfer", second_server_starts)
    assert first.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert len(stored_files(tmp_path)) == 6


def test_cleaner_leaves_writes_in_progress_alone(tmp_path, monkeypatch):
    pool = kv_pool(3)
    store = storage(tmp_path, monkeypatch, kv=pool)
    cleaner = HiCacheL3Cleaner(str(tmp_path), 0, high_watermark=1e-9, low_watermark=0.0)
    transfer = store.agent.transfer

    def cleaned(handle, *args):
        cleaner._tick()
        return transfer(handle, *args)

    monkeypatch.setattr(store.agent, "transfer", cleaned)
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert store.batch_exists(KEYS) == 3


def test_fsync_policy(tmp_path, monkeypatch):
    pool = kv_pool(3)
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    store = storage(tmp_path / "off", monkeypatch, kv=pool)
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert synced == []
    store = storage(tmp_path / "on", monkeypatch, kv=pool, fsync_writes=True)
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert {str(path.parent) for path in stored_files(tmp_path / "on")} <= set(synced), "a rename was not flushed"
    assert sum(".staging" in path for path in synced) == 6, "data must be flushed before the rename"
    with pytest.raises(ValueError, match="fsync_writes"):
        storage(tmp_path, monkeypatch, fsync_writes="yes")


@pytest.mark.parametrize("spelling", ["{}/", "{}//", "{}/x/.."])
def test_any_spelling_of_the_folder(tmp_path, monkeypatch, spelling):
    (tmp_path / "x").mkdir()
    pool = kv_pool(3)
    store = storage(spelling.format(tmp_path), monkeypatch, kv=pool)
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert len(stored_files(tmp_path)) == 6
    store.close()
    assert not list((tmp_path / ".staging").iterdir())


def test_a_folder_that_cannot_be_made_leaves_no_descriptor_open(tmp_path, monkeypatch):
    """The descriptor holds the lock of the staging root: left open, it would keep every later process from cleaning."""
    opened = []
    try:
        from sglang.srt.mem_cache.storage.nixl import nixl_staging
    except ImportError:
        pytest.fail("pages are not written aside")
    lock = nixl_staging._lock_dir

    def recorded(*arguments, **options):
        opened.append(lock(*arguments, **options))
        return opened[-1]

    def refuse(path, *_):
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(nixl_staging, "_lock_dir", recorded)
    monkeypatch.setattr(nixl_staging.os, "mkdir", refuse)
    files = types.SimpleNamespace(iter_all_base_dirs=lambda: [str(tmp_path)])
    with pytest.raises(OSError, match="No space"):
        nixl_staging.NixlStagingArea(files)
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
