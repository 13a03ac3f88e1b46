"""Stands in for: the list of platforms on which upstream allows the extra_buffer strategy of the Mamba radix cache.

The strategy's own code is plain PyTorch and Triton, and runs as it is.
"""

from types import ModuleType

from .hook import after, replace


@after("sglang.srt.arg_groups.mamba_hook")
def allow_extra_buffer(module: ModuleType) -> None:
    replace(module, "_platform_supports_mamba_cache_extra_buffer", lambda: True)
