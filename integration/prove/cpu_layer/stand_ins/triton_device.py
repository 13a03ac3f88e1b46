"""Stands in for: the device that Triton's callers ask about (device context, number of multiprocessors).

Under the interpreter there is no driver to ask. A device context does nothing on a CPU, and the number of
multiprocessors only shapes launch grids; 8 is small enough to interpret.
"""

import contextlib
from types import ModuleType
from typing import Any

from .hook import StandInRefused, after, replace

MULTIPROCESSORS = 8


@after("sglang.srt.utils.common")
def no_device_context(module: ModuleType) -> None:
    import torch

    if not hasattr(module, "device_context"):
        raise StandInRefused("device_context is gone: see what it enters now on a CPU")
    if hasattr(torch.cpu, "device"):
        raise StandInRefused("torch.cpu has a device context of its own now: delete this function")

    def device(index: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    torch.cpu.device = device  # type: ignore[attr-defined]


@after("sglang.kernels.ops.attention.fla.layernorm_gated")
def count_multiprocessors(module: ModuleType) -> None:
    replace(module, "_get_sm_count", lambda device: MULTIPROCESSORS)
