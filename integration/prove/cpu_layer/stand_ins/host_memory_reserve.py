"""Stands in for: a server-sized machine, of which HiCache keeps 10 GiB of host memory free.

The tiny models' host pools take megabytes; with 1 GiB kept free they also fit on a laptop and in CI.
"""

from types import ModuleType

from .hook import after, replace


@after("sglang.srt.mem_cache.pool_host.base")
def keep_less_free(module: ModuleType) -> None:
    replace(module, "HICACHE_HOST_MEMORY_RESERVE_BYTES", 1 << 30)
