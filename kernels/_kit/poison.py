"""Outputs that start as garbage, so that a slot which a kernel forgets, or writes beside its output, shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

INTEGER_PATTERN = 0xA5
GUARD_BYTES = 256


def unwritten(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """A contiguous tensor full of NaN, or of 0xA5 bytes where the dtype has no NaN."""
    tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    _poison(tensor)
    return tensor


@contextmanager
def guarded(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Iterator[torch.Tensor]:
    """Like `unwritten`, between two guard zones; raises AssertionError at exit when a byte of a guard has changed."""
    numel = torch.Size(shape).numel()
    pad = GUARD_BYTES // dtype.itemsize
    whole = torch.empty(numel + 2 * pad, dtype=dtype, device=device)
    whole.view(torch.uint8).fill_(INTEGER_PATTERN)
    inner = whole[pad : pad + numel].view(tuple(shape))
    _poison(inner)
    yield inner
    for side, zone in (("before", whole[:pad]), ("past", whole[pad + numel :])):
        changed = zone.view(torch.uint8) != INTEGER_PATTERN
        assert not changed.any(), f"{int(changed.sum())} bytes written {side} the output"


def _poison(tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        tensor.fill_(float("nan"))
    elif tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor.view(torch.uint8).fill_(0x7F)  # NaN in both formats
    elif tensor.numel():
        tensor.view(torch.uint8).fill_(INTEGER_PATTERN)
