"""Stands in for: the CUDA kernels of speculative decoding's draft tree (build, greedy verify, slots, n-gram tree).

Upstream has a Triton twin of each, chosen on Intel GPUs; named XPU for these decisions, the modules take their twins.
"""

import sys
from types import ModuleType

from .hook import after, before, replace

_NGRAM_TREE = "sglang.kernels.ops.speculative.reconstruct_tree"


@after("sglang.kernels.ops.speculative.spec_tree")
@after("sglang.kernels.ops.speculative.cache_locs")
def take_triton_twins(module: ModuleType) -> None:
    replace(module, "_is_xpu", True)


@before(_NGRAM_TREE)
def import_as_xpu() -> None:
    # This module decides while it is imported; sglang.srt.utils is imported by it first, so here it is loaded by us.
    import sglang.srt.utils as upstream

    kept = replace(upstream, "is_xpu", lambda: True)
    _kept.append(kept)


@after(_NGRAM_TREE)
def restore_is_xpu(module: ModuleType) -> None:
    replace(module, "_is_xpu", True)
    replace(sys.modules["sglang.srt.utils"], "is_xpu", _kept.pop())


_kept: list[object] = []
