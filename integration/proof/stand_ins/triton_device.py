"""Stands in for: the device that Triton's callers ask about (device context, number of multiprocessors).

Under the interpreter there is no driver to ask. A device context does nothing on a CPU, and the number of
multiprocessors only shapes launch grids; 8 is small enough to interpret.
"""

import contextlib
from types import ModuleType

from .hook import after, replace

MULTIPROCESSORS = 8


@after("sglang.kernels.ops.attention.fla.utils")
def no_device_context(module: ModuleType) -> None:
    replace(module, "custom_device_ctx", lambda index: contextlib.nullcontext())


@after("sglang.kernels.ops.attention.fla.layernorm_gated")
def count_multiprocessors(module: ModuleType) -> None:
    replace(module, "_get_sm_count", lambda device: MULTIPROCESSORS)
