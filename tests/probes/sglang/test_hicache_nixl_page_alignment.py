"""Under O_DIRECT every bounce slot starts and ends on a 4096-byte boundary, whatever the size of a page."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import (
    fill,
    hicache_nixl,
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


class BytePages:
    """Pool of `pages` plain byte pages of any size."""

    page_size = 1

    def __init__(self, pages: int, page_bytes: int):
        self.pages = torch.zeros(pages, page_bytes, dtype=torch.uint8)

    def get_dummy_flat_data_page(self):
        return torch.zeros_like(self.pages[0])

    def get_data_page(self, index, flat=True):
        return self.pages[index]

    def copy_flat_data_page(self, index, out):
        out.copy_(self.pages[index])

    def set_from_flat_data_page(self, index, data_page):
        assert data_page.shape == self.pages[index].shape
        self.pages[index] = data_page


@pytest.mark.parametrize("pages", [1, 2, 5])
def test_mixed_size_mamba_pages(tmp_path, monkeypatch, pages):
    pool = mamba_pool(pages, side_states=True)
    store = storage(tmp_path, monkeypatch, mamba=pool)
    expected = fill(pool, pages, seed=pages)
    keys = [f"k{i}" for i in range(pages)]
    assert store.batch_set_v2([mamba_transfer(keys)]) == {"mamba": [True] * pages}
    assert [path.stat().st_size for path in stored_files(tmp_path)] == [8192] * pages
    wipe(pool, pages)
    assert store.batch_get_v2([mamba_transfer(keys)]) == {"mamba": [True] * pages}
    assert pages_equal(pool, expected) == [True] * pages


def test_kv_pages_of_an_odd_size(tmp_path, monkeypatch):
    pool = kv_pool(3, layout="page_first", head_dim=33)
    store = storage(tmp_path, monkeypatch, kv=pool)
    assert not store.is_zero_copy
    expected = fill(pool, 3, seed=1)
    keys = ["a", "b", "c"]
    assert store.batch_set_v1(keys, kv_indices(keys)) == [True] * 3
    wipe(pool, 3)
    assert store.batch_get_v1(keys, kv_indices(keys)) == [True] * 3
    assert pages_equal(pool, expected) == [True] * 3


@pytest.mark.parametrize("page_bytes, stored", [(1, 4096), (4095, 4096), (4096, 4096), (59_019_280, 59_023_360)])
def test_page_of_any_size(tmp_path, monkeypatch, page_bytes, stored):
    monkeypatch.setattr(hicache_nixl, "STORAGE_BATCH_SIZE", 2)
    pool = BytePages(2, page_bytes)
    store = storage(tmp_path, monkeypatch, mamba=pool)
    pool.pages[:] = torch.tensor([[1], [2]])
    assert store.batch_set_v2([mamba_transfer(["a", "b"])]) == {"mamba": [True, True]}
    assert [path.stat().st_size for path in stored_files(tmp_path)] == [stored] * 2
    pool.pages.zero_()
    assert store.batch_get_v2([mamba_transfer(["a", "b"])]) == {"mamba": [True, True]}
    assert pool.pages[0].eq(1).all() and pool.pages[1].eq(2).all()


def test_buffered_pages_are_not_padded(tmp_path, monkeypatch):
    pool = BytePages(2, 100)
    store = storage(tmp_path, monkeypatch, mamba=pool, direct=False)
    assert store.batch_set_v2([mamba_transfer(["a", "b"])]) == {"mamba": [True, True]}
    assert [path.stat().st_size for path in stored_files(tmp_path)] == [100, 100]


@pytest.mark.parametrize("shift, size", [(0, 4095), (0, 100), (8, 4096)])
def test_misaligned_transfer_is_refused_before_a_file_exists(tmp_path, monkeypatch, shift, size):
    pool = kv_pool(4)
    store = storage(tmp_path, monkeypatch, kv=pool)
    assert store.is_zero_copy
    bad = (pool.kv_buffer.data_ptr() + shift, size)
    assert store._batch_xfer(["bad"], ["bad"], [bad], "WRITE") == [False]
    assert stored_files(tmp_path) == []
    good = (pool.kv_buffer.data_ptr(), 4096)
    assert store._batch_xfer(["good"], ["good"], [good], "WRITE") == [True]
