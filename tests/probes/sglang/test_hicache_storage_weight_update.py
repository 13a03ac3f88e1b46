"""After a weight update nothing is read from storage or written to it: its pages are other weights'."""

import types
from typing import NamedTuple

import pytest
from sglang.srt.managers.scheduler_components import weight_updater
from sglang.srt.mem_cache.unified_cache.storage_attachment import StorageAttachment
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

SOURCES = ["disk", "distributed", "tensor", "ipc"]


class Asked(Exception):
    """The cache went on towards storage."""


class Handle(NamedTuple):
    rid: str


def cache():
    tree = object.__new__(UnifiedRadixCache)
    tree.tree_core = types.SimpleNamespace(enable_storage=True, page_size=4, is_eagle=False)
    tree.tree_core.build_storage_backup_spec = lambda *arguments: asked("write")
    tree.tree_core.prefetch_anchor_info = lambda *arguments: asked("read")
    tree.storage_suspended = None
    tree._storage_prefetch_wait, tree.ongoing_prefetch = {}, {}
    tree.buffer_pipeline = tree.linker = None
    tree.host_memory_mode = "cache"
    tree.prefetch_threshold = 1
    tree.hicache_storage_pass_prefix_keys = False
    tree.storage_prefetch_retries = types.SimpleNamespace(cancel=lambda rid: None, poll=lambda rid: True)
    tree.cache_controller = types.SimpleNamespace(
        prefetch_rate_limited=lambda: asked("query"),
        get_prefetch_submission=lambda *arguments, **options: asked("read"),
    )
    tree._storage_attachment = StorageAttachment(tree)
    return tree


def asked(what):
    raise Asked(what)


def reaches_storage(tree, what):
    handle = Handle("request")
    try:
        if what == "write":
            UnifiedRadixCache.write_backup_storage(tree, 1)
        elif what == "query":
            UnifiedRadixCache.query_storage_hit_length(tree, 1, [1, 2, 3, 4])
        else:
            UnifiedRadixCache.prefetch_from_storage(tree, handle, 1, [1, 2, 3, 4, 5, 6, 7, 8], None)
    except Asked:
        return True
    return False


def updated(tree, source, *, fails=False):
    """One update as the scheduler's updater runs it."""
    updater = object.__new__(weight_updater.SchedulerWeightUpdaterManager)
    updater.scheduler = types.SimpleNamespace(tree_cache=tree)
    updater.metrics_collector = None
    try:
        with updater._observe_weight_load(source):
            if fails:
                raise RuntimeError("half of the weights are loaded")
    except RuntimeError:
        pass


@pytest.mark.parametrize("what", ["write", "query", "read"])
def test_storage_is_used_before_an_update(what):
    assert reaches_storage(cache(), what)


@pytest.mark.parametrize("what", ["write", "query", "read"])
@pytest.mark.parametrize("source", SOURCES)
def test_storage_is_not_used_after_an_update(source, what):
    tree = cache()
    updated(tree, source)
    assert not reaches_storage(tree, what)


def test_an_update_that_fails_halfway_counts():
    tree = cache()
    updated(tree, "disk", fails=True)
    assert not reaches_storage(tree, "read")


def test_storage_cannot_be_attached_again_until_a_restart():
    tree = cache()
    updated(tree, "disk")
    done, message = UnifiedRadixCache.attach_storage_backend(tree, "nixl")
    assert not done and "until a restart" in message


def test_every_update_of_the_weights_goes_through_there():
    """The four ways of an update all open the block that stops storage."""
    for source in SOURCES:
        method = getattr(weight_updater.SchedulerWeightUpdaterManager, f"update_weights_from_{source}")
        assert "_observe_weight_load" in method.__code__.co_names
