"""State that load-back restores is waited for: n-gram reads, copy on write, and the load itself behind the forward."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool


class Submitted(Exception):
    """Ends the call where the transfer is handed over; what follows is not this probe's."""


class Order(list):
    """What happened, in order."""

    def note(self, name, result=None):
        return lambda *_, **__: (self.append(name), result)[1]


def pool(order, loading=True):
    counter = SimpleNamespace(
        consumer_index=0 if loading else -1, wait_until=lambda layer: order.append(f"wait {layer}")
    )
    return SimpleNamespace(
        layer_transfer_counter=counter,
        mamba_map={3: 0, 5: 1, 9: 2},
        start_layer=1,
        ngram_pool=SimpleNamespace(get_context=order.note("read")),
        mamba_pool=SimpleNamespace(copy_from=order.note("copy")),
    )


def test_an_ngram_read_waits_for_the_first_mamba_layer():
    order = Order()
    HybridReqToTokenPool.get_ngram_context(pool(order), torch.tensor([1]))
    assert order == ["wait 2", "read"]


def test_copy_on_write_waits_for_the_last_mamba_layer():
    order = Order()
    HybridReqToTokenPool.copy_mamba_state(pool(order), torch.tensor([1]), torch.tensor([2]))
    assert order == ["wait 8", "copy"]


def test_nothing_waits_when_nothing_loads():
    order = Order()
    idle = pool(order, loading=False)
    HybridReqToTokenPool.get_ngram_context(idle, torch.tensor([1]))
    HybridReqToTokenPool.copy_mamba_state(idle, torch.tensor([1]), torch.tensor([2]))
    assert order == ["read", "copy"]


def test_a_load_waits_for_the_stream_that_may_still_write(monkeypatch):
    order = Order()
    module = HiCacheController.start_loading.__globals__
    monkeypatch.setitem(module, "CacheOperation", SimpleNamespace(merge_ops=lambda queue: "op"))
    event = SimpleNamespace(start_event=SimpleNamespace(record=order.note("record")), complete=None)

    def submit(*_, **__):
        order.append("submit")
        raise Submitted

    stream = SimpleNamespace(wait_stream=lambda stream: order.append(f"wait {stream}"))
    engine = SimpleNamespace(host_to_device_stream=stream, submit_host_to_device=submit)
    controller = SimpleNamespace(
        load_queue=["request"],
        layer_done_counter=SimpleNamespace(update_producer=lambda: 0, events=[event]),
        _move_op_indices=lambda op: (None, None, None),
        load_fence_stream="forward",
        l2_transfer_engine=engine,
        _l2_load_transfers=lambda *_: [],
        transfer_layer_id_max=None,
    )
    with pytest.raises(Submitted):
        HiCacheController.start_loading(controller)
    assert order == ["record", "wait forward", "submit"]
