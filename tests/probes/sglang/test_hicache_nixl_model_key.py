"""The model's part of a key fits into a file name, and may be given for a folder of one model's pages."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import fill, kv_indices, kv_pool, mamba_pool, mamba_transfer, pages_equal, storage, stored_files, wipe
from sglang.srt.mem_cache.hicache_storage import PoolName

KEYS = [digit * 64 for digit in "ab"]


def stored(tmp_path, monkeypatch, model, **config):
    """Whether pages of every pool survive under this name; the names of their files."""
    kv, mamba = kv_pool(2), mamba_pool(2, side_states=True)
    store = storage(tmp_path, monkeypatch, kv=kv, mamba=mamba, model=model, **config)
    expected, states = fill(kv, 2, seed=1), fill(mamba, 2, seed=2)
    store.batch_set_v1(KEYS, kv_indices(KEYS))
    store.batch_set_v2([mamba_transfer(KEYS)])
    wipe(kv, 2), wipe(mamba, 2)
    restored = all(store.batch_get_v1(KEYS, kv_indices(KEYS)))
    restored &= all(store.batch_get_v2([mamba_transfer(KEYS)])[PoolName.MAMBA])
    same = pages_equal(kv, expected) == pages_equal(mamba, states) == [True] * 2
    return restored and same, {path.name for path in stored_files(tmp_path)}


@pytest.mark.parametrize("length", [1, 96, 97, 200, 4000])
def test_a_name_of_any_length_stores_pages(tmp_path, monkeypatch, length):
    whole, names = stored(tmp_path, monkeypatch, "m" * length)
    assert whole and max(len(name.encode()) for name in names) <= 255


def test_long_names_that_differ_at_their_end_stay_apart(tmp_path, monkeypatch):
    _, one = stored(tmp_path / "one", monkeypatch, "m" * 200 + "1")
    _, other = stored(tmp_path / "other", monkeypatch, "m" * 200 + "2")
    assert one and other and not one & other


def test_a_given_key_serves_every_name_of_the_model(tmp_path, monkeypatch):
    _, one = stored(tmp_path / "one", monkeypatch, "/models/first", model_key="flash")
    _, other = stored(tmp_path / "other", monkeypatch, "/elsewhere/second", model_key="flash")
    assert one == other and all("flash" in name for name in one)


@pytest.mark.parametrize("given", ["", "a/b", "..\n", 5, ["m"]])
def test_a_key_that_is_no_word_is_refused(tmp_path, monkeypatch, given):
    with pytest.raises(ValueError, match="model_key"):
        storage(tmp_path, monkeypatch, model_key=given)
