"""Stands in for: the host-side check that speculative state commits are on a CUDA or XPU device.

The kernels behind the check are plain Triton and run under the interpreter. While one of the wrapped functions runs,
every tensor answers that it is on an XPU.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

from .hook import after, replace


@after("sglang.kernels.ops.mamba.mamba_state_scatter_triton")
def pass_device_check(module: ModuleType) -> None:
    for name in ("fused_mamba_state_scatter_with_mask", "fused_conv_window_scatter_with_mask"):
        replace(module, name, _as_xpu(getattr(module, name, None)))


def _as_xpu(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if function is None:
        # `replace` refuses right after, with the name.
        return None
    import torch

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        # The real answer lives in torch's base class. A caller may have said the same already: its word stays after ours.
        with mock.patch.object(torch.Tensor, "is_xpu", property(lambda self: True), create=True):
            return function(*arguments, **options)

    return call
