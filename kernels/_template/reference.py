"""The maths in float64, one obvious loop; the kernel is judged against it."""

from __future__ import annotations

import torch


def scale_rows(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Row r of `x` `[R, C]` times `factors[r]`; float64, not rounded."""
    out = torch.empty(x.shape, dtype=torch.float64)
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            out[row, column] = float(x[row, column]) * float(factors[row])
    return out
