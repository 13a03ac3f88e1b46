"""Stands in for: page-locked host memory, which needs a CUDA driver.

HiCache's host pools are allocated as ordinary memory, and every pool answers that it is not pinned.
"""

import inspect
from types import ModuleType
from typing import Any

from .hook import StandInRefused, after


@after("sglang.srt.mem_cache.pool_host.common")
def allocate_unregistered(module: ModuleType) -> None:
    if "pin_memory" not in inspect.signature(module.alloc_with_host_register).parameters:
        raise StandInRefused("alloc_with_host_register no longer takes pin_memory")

    def allocate(*arguments: Any, **options: Any) -> Any:
        options["pin_memory"] = False
        return module.alloc_with_host_register(*arguments, **options)

    module.ALLOC_MEMORY_FUNCS["cpu"] = allocate


@after("sglang.srt.mem_cache.pool_host.base")
def pools_are_not_pinned(module: ModuleType) -> None:
    pool = module.HostKVCache
    if "pin_memory" not in inspect.signature(pool.__init__).parameters:
        raise StandInRefused("HostKVCache no longer takes pin_memory")
    # Upstream's constructors assign the attribute; the assignment is accepted and forgotten.
    pool.pin_memory = property(lambda self: False, lambda self, value: None)
