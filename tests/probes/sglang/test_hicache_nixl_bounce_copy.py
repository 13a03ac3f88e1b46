"""Storing a page through a bounce buffer allocates no second page beside the slot, and stores the same bytes."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import fill, kv_indices, kv_pool, mamba_pool, mamba_transfer, needs_nixl, pages_equal, storage, wipe

pytestmark = needs_nixl

KEYS = ["a", "b", "c"]


class NewMemory(TorchDispatchMode):
    """Sizes in bytes of the storages that operations return and none of their arguments had."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs))}
        for tensor in tensors(result):
            if tensor.untyped_storage().data_ptr() not in known:
                self.sizes.append(tensor.untyped_storage().nbytes())
        return result


def tensors(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def recurrent_states(tmp_path, monkeypatch):
    pool = mamba_pool(3, side_states=True)
    store = storage(tmp_path, monkeypatch, mamba=pool)
    return pool, lambda: store.batch_set_v2([mamba_transfer(KEYS)]), lambda: store.batch_get_v2([mamba_transfer(KEYS)])


def kv_pages(tmp_path, monkeypatch):
    pool = kv_pool(3, layout="layer_first")
    store = storage(tmp_path, monkeypatch, kv=pool)
    assert not store.is_zero_copy
    return (
        pool,
        lambda: {"kv": store.batch_set_v1(KEYS, kv_indices(KEYS))},
        lambda: {"kv": store.batch_get_v1(KEYS, kv_indices(KEYS))},
    )


@pytest.mark.parametrize("kind", [recurrent_states, kv_pages])
def test_no_page_sized_temporary_and_the_same_bytes(tmp_path, monkeypatch, kind):
    pool, write, read = kind(tmp_path, monkeypatch)
    expected = fill(pool, 3, seed=1)
    page_bytes = expected[0].nbytes
    with NewMemory() as memory:
        assert list(write().values()) == [[True] * 3]
    wipe(pool, 3)
    assert list(read().values()) == [[True] * 3]
    assert pages_equal(pool, expected) == [True] * 3
    assert [size for size in memory.sizes if size >= page_bytes] == []


def test_the_meter_sees_a_flattened_page():
    pool = mamba_pool(1)
    with NewMemory() as memory:
        page = pool.get_data_page(0)
    assert page.nbytes in memory.sizes
