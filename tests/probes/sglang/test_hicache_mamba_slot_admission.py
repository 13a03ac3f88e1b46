"""State slots that running requests or copies to the host hold: the next request waits, none ends the scheduler."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import random
import types
from array import array

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from sglang.srt.mem_cache import allocation
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

PAGE, SLOTS = 4, 6
MAMBA = ComponentType.MAMBA


class World:
    """A real pool of six state slots under a real tree, and the scheduler's admission over both."""

    def __init__(self, *, extra_buffer=True, int8=False):
        page = PAGE if extra_buffer else 1
        arguments = ServerArgs(model_path="dummy", page_size=page, enable_int8_mamba_checkpoint=int8)
        arguments._mamba_cache_chunk_size = PAGE
        set_global_server_args_for_scheduler(arguments)
        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=16, n_groups=1, num_heads=1, head_dim=16, state_size=16, conv_kernel=4
        )
        self.pool = HybridReqToTokenPool(
            size=10,
            mamba_size=SLOTS,
            mamba_spec_state_size=10,
            max_context_len=64,
            device="cpu",
            enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
            mamba_layer_ids=[0],
            enable_mamba_extra_buffer=extra_buffer,
            speculative_num_draft_tokens=3,
        )
        kv = dict(size=256, dtype=torch.bfloat16, device="cpu")
        cache = HybridLinearKVPool(
            **kv,
            page_size=page,
            head_num=1,
            head_dim=16,
            full_attention_layer_ids=[1],
            enable_memory_saver=False,
            mamba_pool=self.pool.mamba_pool,
        )
        self.tokens = TokenToKVPoolAllocator(**kv, kvcache=cache, need_sort=False)
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                req_to_token_pool=self.pool,
                token_to_kv_pool_allocator=self.tokens,
                page_size=page,
                disable=False,
                tree_components=(ComponentType.FULL, MAMBA),
                enable_mamba_extra_buffer=extra_buffer,
            )
        )
        self.component = self.tree.components[MAMBA]
        self.slots = self.pool.mamba_allocator
        self.per_request = 1 + self.pool.mamba_initial_tracking_slots
        self.running = types.SimpleNamespace(reqs=[], is_empty=lambda: not self.running.reqs, batch_size=lambda: 0)

    def request(self, first, length=PAGE + 2):
        sampling = SamplingParams(max_new_tokens=1, temperature=0)
        sampling.normalize(None)
        return Req(str(first), "", array("q", range(first, first + length)), sampling)

    def cache(self, first, *, locked=False):
        """One cached page with its state; `locked` as a copy to the host or a running request locks it."""
        size = self.tree.page_size
        key = RadixKey(array("q", range(first, first + size)))
        value = self.tokens.alloc(size)
        node = self.tree.insert(InsertParams(key=key, value=value, mamba_value=self.slots.alloc(1))).last_device_node
        if locked:
            self.tree.inc_lock_ref(node)
        return node

    def adder(self):
        return PrefillAdder(self.tree.page_size, self.tree, self.tokens, self.running, 0.5, 4096, 4096)

    def admit(self, adder, request):
        request.init_next_round_input(self.tree)
        return adder.add_one_req(request, has_chunked_req=False, truncation_align_size=None)

    def leave_waiting(self, request):
        """What the scheduler does with a request that a pass did not admit."""
        if request.kv.holds_mamba:
            self.slots.free(request.kv.mamba_pool_idx.unsqueeze(-1))
            request.kv.mamba_pool_idx = None

    def allocate(self, requests):
        allocation.alloc_req_slots(self.pool, requests, self.tree)


def test_a_request_without_free_slots_waits():
    world = World()
    for first in range(100, 100 * SLOTS, 100):
        world.cache(first, locked=True)
    adder, request = world.adder(), world.request(0)
    verdict = world.admit(adder, request)
    assert (verdict, adder.can_run_list) == (AddReqResult.NO_TOKEN, [])
    assert not request.kv.holds_mamba and world.slots.available_size() == 1


def test_slots_come_back_by_evicting_what_is_not_locked():
    world = World()
    for first in range(100, 100 + 100 * SLOTS, 100):
        world.cache(first)
    adder, request = world.adder(), world.request(0)
    assert world.admit(adder, request) == AddReqResult.CONTINUE
    world.allocate(adder.can_run_list)
    assert request.kv.holds_mamba and not (request.kv.mamba_ping_pong_track_buffer < 0).all()


@pytest.mark.parametrize("locked", range(SLOTS + 1))
def test_what_is_admitted_together_is_allocated_together(locked):
    """However many slots are locked, the pass admits as many requests as the rest can hold and no more."""
    world = World()
    for first in range(100, 100 + 100 * SLOTS, 100):
        world.cache(first, locked=first < 100 + 100 * locked)
    adder = world.adder()
    for number in range(SLOTS):
        if world.admit(adder, world.request(1000 + 50 * number)) != AddReqResult.CONTINUE:
            break
    assert len(adder.can_run_list) == (SLOTS - locked) // world.per_request
    if adder.can_run_list:
        world.allocate(adder.can_run_list)


def test_the_state_that_a_request_continues_is_not_counted_as_its_room():
    """With a free slot fewer than the request needs, its own prefix's state must not be evicted to make room."""
    world = World()
    node = world.cache(0)
    for first in range(100, 100 * (SLOTS - world.per_request), 100):
        world.cache(first, locked=True)
    taken = world.slots.alloc(1)
    assert world.slots.available_size() == world.per_request - 1
    adder, request = world.adder(), world.request(0)
    assert world.admit(adder, request) != AddReqResult.CONTINUE
    assert adder.can_run_list == []
    assert world.tree.tree_core.get_component_device_value(node, MAMBA) is not None
    world.slots.free(taken)
    world.leave_waiting(request)
    adder = world.adder()
    assert world.admit(adder, request) == AddReqResult.CONTINUE
    world.allocate(adder.can_run_list)
    assert request.prefix_len == PAGE and request.kv.mamba_cow_src_index is not None


def test_waiting_for_a_copy_does_not_close_the_batch():
    """A slot behind a copy to the host comes back without any request leaving: the verdict is OTHER, not NO_TOKEN."""
    world = World()
    for first in range(100, 100 * SLOTS, 100):
        world.cache(first, locked=True)
    world.tree.ongoing_write_through[1] = object()
    adder = world.adder()
    assert (world.admit(adder, world.request(0)), adder.can_run_list) == (AddReqResult.OTHER, [])


def test_a_match_without_a_slot_to_copy_into_is_no_match():
    world = World()
    world.cache(0)
    world.slots.alloc(world.slots.available_size())
    request = world.request(0)
    try:
        world.tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", range(PAGE))), cow_mamba=True, req=request))
    except AssertionError as error:
        pytest.fail(f"the scheduler would end: {error}")
    request.init_next_round_input(world.tree)
    assert request.prefix_len == 0 and not request.kv.holds_mamba and request.kv.mamba_cow_src_index is None


@pytest.mark.parametrize("extra_buffer", [True, False])
def test_a_checkpoint_without_a_slot_is_not_published(extra_buffer):
    world = World(extra_buffer=extra_buffer)
    request = world.request(0)
    request.refresh_fill_ids()
    world.allocate([request])
    request.kv.mamba_last_track_seqlen = PAGE
    world.slots.alloc(world.slots.available_size())
    kept = (request.kv.mamba_pool_idx, request.kv.mamba_ping_pong_track_buffer)
    try:
        published = world.component.prepare_for_caching_req(request, InsertParams(), PAGE, is_finished=False)
    except AssertionError as error:
        pytest.fail(f"the scheduler would end: {error}")
    assert published == 0
    assert request.kv.mamba_pool_idx is kept[0] and request.kv.mamba_ping_pong_track_buffer is kept[1]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_checkpoint_without_an_int8_slot_is_not_published(is_finished):
    world = World(int8=True)
    request = world.request(0)
    request.refresh_fill_ids()
    world.allocate([request])
    request.kv.mamba_last_track_seqlen = PAGE
    world.component.int8_ckpt_pool.alloc(world.component.int8_ckpt_pool.available_size())
    before = world.slots.available_size()
    try:
        published = world.component.prepare_for_caching_req(request, InsertParams(), PAGE, is_finished=is_finished)
    except AssertionError as error:
        pytest.fail(f"the scheduler would end: {error}")
    assert published == 0 and world.slots.available_size() == before


def test_a_load_back_without_a_slot_is_called_off(monkeypatch):
    world = World()
    node = world.cache(0)
    world.tree.cache_controller = types.SimpleNamespace(write_policy="write_through")
    monkeypatch.setattr(type(world.tree.tree_core), "component_has_host_value_only", lambda *_: True)
    world.slots.alloc(world.slots.available_size())
    world.tree.inc_lock_ref(node)
    request = world.request(0)
    locked = world.tree.mamba_protected_size()
    try:
        loaded = world.tree.load_back(node, req=request)
    except AssertionError as error:
        pytest.fail(f"the scheduler would end: {error}")
    assert loaded is False and not request.kv.holds_mamba
    assert world.tree.mamba_protected_size() == locked


def test_the_last_resort_waits_for_the_copies_in_flight(monkeypatch):
    """Slots that admission promised but copies hold: they are waited for once, and the allocation succeeds."""
    world = World()
    nodes = [world.cache(first) for first in range(100, 100 + 100 * SLOTS, 100)]
    locks = [world.tree.inc_lock_ref(node) for node in nodes]
    world.tree.ongoing_write_through[1] = object()

    def finish(write_back=False, finish_count=None):
        world.tree.ongoing_write_through.clear()
        for node, lock in zip(nodes, locks, strict=True):
            world.tree.dec_lock_ref(node, lock.to_dec_params())

    monkeypatch.setattr(world.tree, "writing_check", finish)
    request = world.request(0)
    try:
        world.allocate([request])
    except AssertionError as error:
        pytest.fail(f"the scheduler would end: {error}")
    assert request.kv.holds_mamba


def test_reuse_stays_within_the_pool_under_random_load():
    """200 passes of random prompts, locks and releases: no allocation fails and no slot is lost."""
    choose = random.Random(0)
    world = World()
    held, live, refused = [], [], 0
    for step in range(200):
        adder = world.adder()
        for _ in range(choose.randrange(1, 4)):
            request = world.request(choose.randrange(8) * 100, length=choose.randrange(PAGE + 1, 3 * PAGE))
            if world.admit(adder, request) != AddReqResult.CONTINUE:
                if request not in adder.can_run_list:
                    world.leave_waiting(request)
                break
        try:
            if adder.can_run_list:
                world.allocate(adder.can_run_list)
        except (AssertionError, RuntimeError) as error:
            pytest.fail(f"step {step}: the scheduler would end: {error}")
        refused += not adder.can_run_list
        live += adder.can_run_list
        while live and (choose.random() < 0.5 or len(live) > 5):
            request = live.pop(choose.randrange(len(live)))
            world.tree.unlock(request.lock)
            kept = request.kv.mamba_ping_pong_track_buffer[0:1].clone()
            free = [request.kv.mamba_pool_idx.reshape(1), request.kv.mamba_ping_pong_track_buffer[1:]]
            world.slots.free(torch.cat([part[part >= 0] for part in free]))
            world.pool.free(request)
            value = world.tokens.alloc(PAGE)
            if value is None:
                world.slots.free(kept)
                continue
            key = RadixKey(array("q", request.origin_input_ids[:PAGE]))
            result = world.tree.insert(InsertParams(key=key, value=value, mamba_value=kept))
            if result.mamba_exist:
                world.slots.free(kept)
            if choose.random() < 0.6:
                held.append((result.last_device_node, world.tree.inc_lock_ref(result.last_device_node)))
        while held and choose.random() < 0.3:
            node, lock = held.pop(0)
            world.tree.dec_lock_ref(node, lock.to_dec_params())
    assert 0 < refused < 200
