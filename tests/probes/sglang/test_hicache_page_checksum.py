"""With page_checksum on, a page whose bytes or name changed on disk is a miss, and is removed."""

import os
import sys
from pathlib import Path

import pytest

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


def kv_store(tmp_path, monkeypatch, layout="page_first", **config):
    pool = kv_pool(3, layout=layout)
    store = storage(tmp_path, monkeypatch, kv=pool, page_checksum=True, **config)
    expected = fill(pool, 3, seed=1)
    assert store.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    wipe(pool, 3)
    return pool, store, expected


def path_of(store, key, suffix=""):
    return Path(store.file_manager.get_file_path(store._get_suffixed_key(key) + suffix))


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_undamaged_pages_verify(tmp_path, monkeypatch, layout, direct):
    pool, store, expected = kv_store(tmp_path, monkeypatch, layout, direct=direct)
    assert store.batch_get_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert pages_equal(pool, expected) == [True] * 3


@pytest.mark.parametrize("offset", [0, 1, 2047, 4095])
@pytest.mark.parametrize("bit", [0, 7])
def test_flipped_bit(tmp_path, monkeypatch, offset, bit):
    pool, store, expected = kv_store(tmp_path, monkeypatch)
    damaged = path_of(store, "b", "_v")
    data = bytearray(damaged.read_bytes())
    data[offset] ^= 1 << bit
    with damaged.open("r+b") as file:  # in place: the stored checksum stays
        file.write(data)
    assert store.batch_get_v1(KEYS, kv_indices(KEYS))[:2] == [True, False]
    assert pages_equal(pool, expected)[0]
    assert not damaged.exists()


@pytest.mark.parametrize("suffix", ["_k", "_v"])
def test_swapped_pages(tmp_path, monkeypatch, suffix):
    _, store, _ = kv_store(tmp_path, monkeypatch)
    a, b = path_of(store, "a", suffix), path_of(store, "b", suffix)
    a.rename(tmp_path / "swap")
    b.rename(a)
    (tmp_path / "swap").rename(b)
    assert store.batch_get_v1(KEYS, kv_indices(KEYS))[:2] == [False, False]


def test_recurrent_state(tmp_path, monkeypatch):
    for aligned in (True, False):
        pool = mamba_pool(3, aligned=aligned)
        store = storage(tmp_path / str(aligned), monkeypatch, mamba=pool, page_checksum=True)
        expected = fill(pool, 3, seed=1)
        assert store.batch_set_v2([mamba_transfer(KEYS)]) == {"mamba": [True] * 3}
        wipe(pool, 3)
        assert store.batch_get_v2([mamba_transfer(KEYS)]) == {"mamba": [True] * 3}
        assert pages_equal(pool, expected) == [True] * 3
        damaged = next(path for path in stored_files(tmp_path / str(aligned)) if path.name.startswith("c"))
        with damaged.open("r+b") as file:
            file.write(b"\xff")
        assert store.batch_get_v2([mamba_transfer(KEYS)]) == {"mamba": [True, True, False]}


def test_page_without_a_checksum_is_a_miss(tmp_path, monkeypatch):
    pool = kv_pool(3)
    plain = storage(tmp_path, monkeypatch, kv=pool)
    fill(pool, 3, seed=1)
    assert plain.batch_set_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    assert plain.batch_get_v1(KEYS, kv_indices(KEYS)) == [True] * 3
    checked = storage(tmp_path, monkeypatch, kv=pool, page_checksum=True)
    assert checked.batch_get_v1(KEYS, kv_indices(KEYS)) == [False] * 3


def test_page_cleaned_up_while_it_was_read_is_a_plain_miss(tmp_path, monkeypatch, caplog):
    _, store, _ = kv_store(tmp_path, monkeypatch)
    read = store._xfer_pre_registered

    def read_and_lose(buffers, paths, direction):
        arrived = read(buffers, paths, direction)
        path_of(store, "b", "_v").unlink()
        return arrived

    monkeypatch.setattr(store, "_xfer_pre_registered", read_and_lose)
    assert store.batch_get_v1(KEYS, kv_indices(KEYS))[:2] == [True, False]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_file_system_without_attributes_is_refused(tmp_path, monkeypatch):
    def refuse(path, *_):
        raise OSError(95, "Operation not supported", str(path))

    monkeypatch.setattr(os, "setxattr", refuse)
    storage(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="page_checksum needs extended attributes"):
        storage(tmp_path, monkeypatch, page_checksum=True)
    with pytest.raises(ValueError, match="page_checksum must be a boolean"):
        storage(tmp_path, monkeypatch, page_checksum=1)
