"""The prefetch deadline holds while only the recurrent state is being read; its slots stay with the read until the end."""

import types
from typing import NamedTuple

import pytest
import torch
from sglang.srt.mem_cache import unified_radix_cache as module
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer


class Handle(NamedTuple):
    rid: str


PAGE, HANDLE = 64, Handle("request")


class Clock:
    """A wait that began `elapsed` seconds ago."""

    def __init__(self, elapsed):
        self.running, self._elapsed = True, elapsed

    def elapsed(self):
        return self._elapsed

    def observe(self, ready):
        pass


def operation(read):
    """Two pages and a state were found; `read` of their 128 tokens have landed and the state has not."""
    state = types.SimpleNamespace(
        handle=HANDLE,
        host_indices=torch.arange(2 * PAGE),
        completed_tokens=read,
        hash_value=["a", "b"],
        stats_requested_tokens=2 * PAGE,
        pool_transfers=[PoolTransfer(PoolName.MAMBA, keys=["b"])],
        pool_transfers_done=False,
        deadline_expired=False,
    )
    state.is_terminated = lambda: False
    return state


def cache(elapsed, ongoing):
    tree = object.__new__(module.UnifiedRadixCache)
    wait = module._StoragePrefetchWait(timeout_s=1.0)
    wait.timer = Clock(elapsed)
    tree.tree_core = types.SimpleNamespace(page_size=PAGE)
    tree.prefetch_stop_policy, tree.pp_rank = "timeout", 0
    tree._storage_prefetch_wait = {HANDLE: wait}
    tree._all_reduce = lambda tensor, op: None
    tree.storage_prefetch_retries = types.SimpleNamespace(cancel=lambda rid: None)
    tree._prefetch_outcome_stats = {"cut_by_deadline": 0}
    tree.ongoing_prefetch = {HANDLE: types.SimpleNamespace(operation=ongoing)}
    tree.cache_controller = types.SimpleNamespace(pp_prefetch_decisions={}, terminate_prefetch=lambda operation: None)
    tree.handled = []
    tree._handle_prefetch_result = tree.handled.append
    return tree


@pytest.mark.parametrize("read", [0, PAGE, 2 * PAGE], ids=["nothing", "half-the-kv", "kv-but-no-state"])
def test_at_the_deadline_the_request_goes_on(read):
    ongoing = operation(read)
    tree = cache(1.5, ongoing)
    assert module.UnifiedRadixCache.check_prefetch_progress(tree, HANDLE) is True
    assert ongoing.deadline_expired and tree.handled == [ongoing]
    assert tree._prefetch_outcome_stats["cut_by_deadline"] == 1


@pytest.mark.parametrize("read", [0, PAGE, 2 * PAGE])
def test_before_the_deadline_it_waits(read):
    tree = cache(0.5, operation(read))
    assert module.UnifiedRadixCache.check_prefetch_progress(tree, HANDLE) is False
    assert tree.handled == []


def test_slots_of_a_read_in_flight_are_not_handed_out():
    """What the deadline cut is released without the state's host slots: the read may still write into them."""
    ongoing = operation(2 * PAGE)
    ongoing.deadline_expired = True
    ongoing.pool_storage_result = types.SimpleNamespace(extra_pool_hit_pages={})
    ongoing.sidecar_hash_values = None
    tree = cache(1.5, ongoing)
    released = []
    tree.storage_existence_cache = types.SimpleNamespace(pool=lambda name: None)
    tree._finish_storage_prefetch = lambda *arguments, **options: None
    tree._retire_ongoing_prefetch = lambda request, host, pools: released.append((len(host), pools))
    tree.prefetch_loaded_tokens_by_reqid, tree.prefetch_loaded_storage_start_by_reqid = {}, {}
    whole = module.UnifiedRadixCache._check_hybrid_prefetch_result(
        tree, HANDLE, ongoing, ongoing.hash_value, ongoing.host_indices
    )
    assert whole is False and released == [(2 * PAGE, None)]
