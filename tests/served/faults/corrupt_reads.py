"""Deliberate fault: every page that comes back from storage is zeros."""

import ctypes
from types import ModuleType
from typing import Any

from stand_ins import after, replace


@after("sglang.srt.mem_cache.storage.nixl.hicache_nixl")
def zero_pages(module: ModuleType) -> None:
    def transfer(self: Any, paths: Any, keys: Any, buffers: Any, direction: str) -> Any:
        results = original(self, paths, keys, buffers, direction)
        if direction == "READ":
            for address, size in buffers:
                ctypes.memset(address, 0, size)
        return results

    original = replace(module.HiCacheNixl, "_batch_xfer", transfer)
