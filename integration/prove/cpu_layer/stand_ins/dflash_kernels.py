"""Stands in for: the accelerator that DFLASH's worker asks for before it takes its Triton kernels.

The worker falls back to PyTorch elsewhere; named XPU, it takes the kernels, which run under the interpreter. Kernels
that ask each tensor whether it is on CUDA still take their PyTorch fallback.
"""

from types import ModuleType

from .hook import after, replace


@after("sglang.srt.speculative.dflash_worker_v2")
def take_triton_kernels(module: ModuleType) -> None:
    replace(module, "is_xpu", lambda: True)
