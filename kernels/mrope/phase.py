"""Rotary frequencies as fixed-point fractions of a turn, so that an angle is exact at any position."""

from __future__ import annotations

import math

import torch


def phase_steps(
    rotary_dim: int,
    base: float,
    *,
    factor: float = 1.0,
    low: float = 0.0,
    high: float = 0.0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """What one position adds to each pair's angle, in turns times 2^64: int64 `[rotary_dim / 2]`.

    `factor`, `low` and `high` are YaRN's (arXiv 2309.00071): pairs up to `low` keep their frequency, pairs from `high`
    on are slowed by `factor`, in between it is blended. The multiplication by a position wraps around whole turns, so
    nothing is lost with distance: the angle is right to 1e-6 rad at every position below 2^31 (docs/decisions/0051).
    Raises ValueError for a rotary_dim that is not even, a base not above 1 or a factor below 1.
    """
    if rotary_dim <= 0 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: got {rotary_dim}, needs a positive even number")
    if not base > 1.0:
        raise ValueError(f"base: got {base}, needs more than 1")
    if not factor >= 1.0:
        raise ValueError(f"factor: got {factor}, needs at least 1")
    if abs(high - low) <= 1e-6:
        high = low + 0.001
    steps = []
    for pair in range(rotary_dim // 2):
        frequency = base ** (-2.0 * pair / rotary_dim)
        if factor != 1.0:
            slowed = min(max((pair - low) / (high - low), 0.0), 1.0)
            frequency *= (1.0 - slowed) + slowed / factor
        steps.append(round(frequency / (2.0 * math.pi) * 2.0**64))
    return torch.tensor(steps, dtype=torch.int64, device=device)
