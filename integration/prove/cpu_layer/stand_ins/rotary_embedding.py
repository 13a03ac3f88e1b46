"""Stands in for: the rotary kernel that upstream takes from vLLM where it finds no accelerator.

Upstream's constructor only spares that import on platforms it knows. Named a CPU for this one decision, it keeps no
fallback kernel, and its own dispatch then runs its own native (PyTorch) rotary path.
"""

from types import ModuleType

from .hook import after, replace


@after("sglang.srt.layers.rotary_embedding.base")
def keep_native_path(module: ModuleType) -> None:
    replace(module, "_is_cpu", True)
