"""Pages are copied to and from bounce buffers while others are transferred, and nothing else changes."""

import itertools
import sys
import threading
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
    wipe,
)

pytestmark = needs_nixl

PAGES = 16
KEYS = [f"k{i}" for i in range(PAGES)]
PATIENCE = 6.0  # seconds that a transfer waits for what must happen meanwhile; where it never does, they pass


@pytest.fixture(autouse=True)
def _pages_of_these_pools_are_worth_a_run(monkeypatch):
    monkeypatch.setattr(hicache_nixl, "_BOUNCE_RUN_BYTES_MIN", 1, raising=False)


class Stored:
    """PAGES pages of a pool behind bounce buffers, stored and restored through one pair of calls."""

    def __init__(self, tmp_path, monkeypatch, kind: str):
        if kind == "states":
            self.pool = mamba_pool(PAGES, side_states=True)
            self.store = storage(tmp_path, monkeypatch, mamba=self.pool)
        else:
            self.pool = kv_pool(PAGES, layout="layer_first")
            self.store = storage(tmp_path, monkeypatch, kv=self.pool)
            assert not self.store.is_zero_copy
        self.kind = kind
        self.expected = fill(self.pool, PAGES, seed=1)

    def set(self) -> list[bool]:
        if self.kind == "states":
            return self.store.batch_set_v2([mamba_transfer(KEYS)])["mamba"]
        return self.store.batch_set_v1(KEYS, kv_indices(KEYS))

    def get(self) -> list[bool]:
        if self.kind == "states":
            return self.store.batch_get_v2([mamba_transfer(KEYS)])["mamba"]
        return self.store.batch_get_v1(KEYS, kv_indices(KEYS))

    def path(self, key: str) -> Path:
        key = self.store._get_component_key(key, "mamba" if self.kind == "states" else None)
        return Path(self.store.file_manager.get_file_path(key))


@pytest.fixture(params=["states", "kv"])
def stored(tmp_path, monkeypatch, request):
    made = Stored(tmp_path, monkeypatch, request.param)
    yield made
    made.store.close()


class Transfers:
    """Holds every transfer of a store until `release` is set or `patience` seconds passed; counts those under way."""

    def __init__(self, store, monkeypatch, direction: str | None = None, patience: float = PATIENCE):
        self.release = threading.Event()
        self.under_way = self.most = self.count = 0
        self.began = threading.Event()
        self.lock = threading.Lock()
        transfer = store._xfer_pre_registered

        def held(buffers, keys, way):
            if direction not in (None, way):
                return transfer(buffers, keys, way)
            with self.lock:
                self.count += 1
                self.under_way += 1
                self.most = max(self.most, self.under_way)
            self.began.set()
            self.release.wait(patience)
            try:
                return transfer(buffers, keys, way)
            finally:
                with self.lock:
                    self.under_way -= 1

        monkeypatch.setattr(store, "_xfer_pre_registered", held)


def watch_copies(pool, monkeypatch, names, seen) -> None:
    for name in names:
        if hasattr(pool, name):
            copy = getattr(pool, name)

            def watched(*arguments, copy=copy, **options):
                seen()
                return copy(*arguments, **options)

            monkeypatch.setattr(pool, name, watched)


def test_a_page_is_copied_in_while_others_are_written(stored, monkeypatch):
    transfers = Transfers(stored.store, monkeypatch)
    meanwhile = []

    def seen():
        if transfers.under_way:
            meanwhile.append(True)
            transfers.release.set()

    watch_copies(stored.pool, monkeypatch, ["get_data_page", "copy_flat_data_page"], seen)
    assert stored.set() == [True] * PAGES
    assert meanwhile, "no page was copied to a bounce buffer while others were written"


def test_a_page_is_copied_out_while_others_are_read(stored, monkeypatch):
    assert stored.set() == [True] * PAGES
    wipe(stored.pool, PAGES)
    second, copied = threading.Event(), threading.Event()
    transfer, started, meanwhile = stored.store._xfer_pre_registered, itertools.count(1), []

    def held(buffers, keys, way):
        if next(started) == 2:  # until a page of another run has been copied out
            second.set()
            copied.wait(PATIENCE)
        return transfer(buffers, keys, way)

    def seen():
        if not copied.is_set():
            meanwhile.append(second.wait(PATIENCE))
        copied.set()

    monkeypatch.setattr(stored.store, "_xfer_pre_registered", held)
    watch_copies(stored.pool, monkeypatch, ["set_from_flat_data_page"], seen)
    assert stored.get() == [True] * PAGES
    assert meanwhile[0], "no page was copied from a bounce buffer while others were read"
    assert pages_equal(stored.pool, stored.expected) == [True] * PAGES


def test_every_page_arrives_under_its_own_name(stored):
    assert stored.set() == [True] * PAGES
    wipe(stored.pool, PAGES)
    assert stored.get() == [True] * PAGES
    assert pages_equal(stored.pool, stored.expected) == [True] * PAGES


@pytest.mark.parametrize("lost", range(0, PAGES, 3))
def test_a_lost_page_ends_the_prefix(stored, lost):
    assert stored.set() == [True] * PAGES
    stored.path(KEYS[lost]).unlink()
    wipe(stored.pool, PAGES)
    assert stored.get() == [True] * lost + [False] * (PAGES - lost)
    assert pages_equal(stored.pool, stored.expected)[:lost] == [True] * lost


@pytest.mark.parametrize("refused", range(0, PAGES, 3))
def test_a_page_is_reported_stored_only_if_it_is(stored, refused):
    stored.path(KEYS[refused]).mkdir(parents=True)
    results = stored.set()
    assert len(results) == PAGES and results[:refused] == [True] * refused and not results[refused]
    assert all(stored.path(key).is_file() for key, ok in zip(KEYS, results, strict=True) if ok)


def test_an_exception_leaves_nothing_under_way(stored, monkeypatch):
    """The host pages of the call and the bounce slots may be used by others as soon as it has raised."""
    transfer, calls, began, ended = stored.store._xfer_pre_registered, itertools.count(), [], []

    def broken(buffers, keys, way):
        if next(calls) == 0:
            raise RuntimeError("broken")
        began.append(keys)
        threading.Event().wait(0.5)
        ended.append(transfer(buffers, keys, way))
        return ended[-1]

    monkeypatch.setattr(stored.store, "_xfer_pre_registered", broken)
    with pytest.raises(RuntimeError, match="broken"):
        stored.set()
    assert len(ended) == len(began)
    monkeypatch.setattr(stored.store, "_xfer_pre_registered", transfer)
    assert stored.set() == [True] * PAGES
    wipe(stored.pool, PAGES)
    assert stored.get() == [True] * PAGES
    assert pages_equal(stored.pool, stored.expected) == [True] * PAGES


def test_writes_that_hang_do_not_hold_up_a_restore(stored, monkeypatch):
    assert stored.set() == [True] * PAGES
    writes = Transfers(stored.store, monkeypatch, "WRITE", patience=60.0)
    results = []
    writer = threading.Thread(target=lambda: results.extend(stored.set()))
    writer.start()
    try:
        assert writes.began.wait(10)
        assert stored.get() == [True] * PAGES
        assert writes.under_way and not results
    finally:
        writes.release.set()
        writer.join(60)
    assert results == [True] * PAGES


def test_a_buffer_of_one_page_takes_one_after_the_other(stored, monkeypatch):
    transfers = Transfers(stored.store, monkeypatch)
    transfers.release.set()
    holder, prefix = (stored.store, "_")
    if stored.kind == "states":
        holder, prefix = (stored.store._hybrid_pool_ctx["mamba"], "")
    for name in (prefix + "bounce_set", prefix + "bounce_get"):
        monkeypatch.setattr(holder, name, getattr(holder, name)[:1])
    assert stored.set() == [True] * PAGES
    wipe(stored.pool, PAGES)
    assert stored.get() == [True] * PAGES
    assert pages_equal(stored.pool, stored.expected) == [True] * PAGES
    assert transfers.most == 1


def test_runs_under_way_share_no_memory(stored, monkeypatch):
    """The ranges of the bounce buffer that transfers see at one time do not overlap."""
    transfer, live, lock = stored.store._xfer_pre_registered, [], threading.Lock()
    met = []

    def ranged(host_buffers, keys, way):
        span = (min(a for a, _ in host_buffers), max(a + size for a, size in host_buffers))
        with lock:
            met.extend((span, other) for other in live if span[0] < other[1] and other[0] < span[1])
            live.append(span)
        threading.Event().wait(0.02)
        try:
            return transfer(host_buffers, keys, way)
        finally:
            with lock:
                live.remove(span)

    monkeypatch.setattr(stored.store, "_xfer_pre_registered", ranged)
    for _ in range(3):
        assert stored.set() == [True] * PAGES
        assert stored.get() == [True] * PAGES
    assert met == []


def test_pages_too_small_to_gain_go_in_one_transfer(stored, monkeypatch):
    monkeypatch.setattr(hicache_nixl, "_BOUNCE_RUN_BYTES_MIN", 8 << 20, raising=False)
    transfers = Transfers(stored.store, monkeypatch)
    transfers.release.set()
    assert stored.set() == [True] * PAGES
    assert stored.get() == [True] * PAGES
    assert transfers.count == 2


def test_indices_that_do_not_fit_the_keys_are_refused(stored):
    if stored.kind == "states":
        wrong = mamba_transfer(KEYS)
        wrong.host_indices = torch.arange(PAGES - 1)
        assert stored.store.batch_set_v2([wrong]) == {"mamba": [False] * PAGES}
        assert stored.store.batch_get_v2([wrong]) == {"mamba": [False] * PAGES}
    else:
        wrong = kv_indices(KEYS)[:-1]
        assert stored.store.batch_set_v1(KEYS, wrong) == [False] * PAGES
        assert stored.store.batch_get_v1(KEYS, wrong) == [False] * PAGES


def test_no_keys_is_nothing_to_do(stored, monkeypatch):
    def never(*_):
        raise AssertionError("a transfer of nothing")

    monkeypatch.setattr(stored.store, "_xfer_pre_registered", never)
    if stored.kind == "states":
        assert stored.store.batch_set_v2([mamba_transfer([])]) == {"mamba": []}
        assert stored.store.batch_get_v2([mamba_transfer([])]) == {"mamba": []}
    else:
        assert stored.store.batch_set_v1([], kv_indices([])) == []
        assert stored.store.batch_get_v1([], kv_indices([])) == []


@pytest.mark.parametrize(("queue", "most"), [("use_uring", 4), ("use_aio", 4), ("use_posix_aio", 1)])
def test_only_queues_that_keep_results_apart_have_several_transfers(tmp_path, monkeypatch, queue, most):
    """NIXL's POSIX AIO can report the failure of one transfer to another that is under way."""
    pool = mamba_pool(PAGES, side_states=True)
    plugin = {"posix": {"active": True, queue: "true"}}
    store = storage(tmp_path, monkeypatch, mamba=pool, plugin=plugin)
    expected = fill(pool, PAGES, seed=2)
    transfers = Transfers(store, monkeypatch, patience=0.1)
    assert store.batch_set_v2([mamba_transfer(KEYS)]) == {"mamba": [True] * PAGES}
    wipe(pool, PAGES)
    assert store.batch_get_v2([mamba_transfer(KEYS)]) == {"mamba": [True] * PAGES}
    assert pages_equal(pool, expected) == [True] * PAGES
    assert transfers.most == most
    store.close()
