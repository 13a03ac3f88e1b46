"""The maths in float64, one obvious loop; every implementation of this kernel is judged against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Yarn:
    """YaRN scaling of the rotary frequencies; `factor == 1` leaves them alone.

    `low` and `high` bound the ramp over pair numbers (pairs below `low` keep their frequency, pairs above `high` are
    slowed by `factor`); `attention_factor` scales cos and sin. Source: arXiv 2309.00071, section 3.2.
    """

    factor: float = 1.0
    low: float = 0.0
    high: float = 0.0
    attention_factor: float = 1.0


def yarn_from_config(
    factor: float,
    *,
    rotary_dim: int,
    base: float,
    original_max_position: int,
    beta_fast: float = 32,
    beta_slow: float = 1,
) -> Yarn:
    """The usual YaRN parameters of a model: ramp bounds from the two betas, attention factor 0.1 ln(factor) + 1."""

    def pair_that_turns(rotations: float) -> float:
        return rotary_dim * math.log(original_max_position / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(beta_slow)), rotary_dim - 1)
    return Yarn(factor, low, high, 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)


def inverse_frequencies(rotary_dim: int, base: float, yarn: Yarn) -> np.ndarray:
    """Radians a position for each pair, float64 `[rotary_dim / 2]`."""
    frequencies = np.empty(rotary_dim // 2)
    high = yarn.high if abs(yarn.high - yarn.low) > 1e-6 else yarn.high + 0.001
    for pair in range(rotary_dim // 2):
        plain = base ** (-2.0 * pair / rotary_dim)
        ramp = min(max((pair - yarn.low) / (high - yarn.low), 0.0), 1.0) if yarn.factor != 1.0 else 0.0
        frequencies[pair] = plain / yarn.factor * ramp + plain * (1.0 - ramp)
    return frequencies


def cos_sin_cache(length: int, frequencies: np.ndarray, attention_factor: float = 1.0) -> np.ndarray:
    """Rows of cos then sin for positions 0 … length-1, float64 `[length, rotary_dim]`."""
    angles = np.arange(length, dtype=np.float64)[:, None] * frequencies[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * attention_factor


def qk_norm_mrope(
    heads: np.ndarray,
    weight: np.ndarray,
    cos_sin: np.ndarray,
    owners: Sequence[int] | None,
    *,
    rotary_dim: int,
    eps: float,
    neox: bool,
) -> np.ndarray:
    """RMSNorm each head, then turn its first `rotary_dim` dims.

    heads `[T, H, D]`; weight `[D]`; cos_sin `[T, A, rotary_dim]` with A = 1 or 3 position axes (the rows of the cache
    that the token's positions name, or the same computed); owners `[rotary_dim / 2]` names each pair's axis, None when
    A = 1. Pair i is dims (i, i + rotary_dim/2) with `neox`, dims (2i, 2i + 1) without.
    Returns float64 `[T, H, D]`, not rounded.
    """
    out = np.empty(heads.shape, dtype=np.float64)
    half = rotary_dim // 2
    for token in range(heads.shape[0]):
        for head in range(heads.shape[1]):
            x = heads[token, head].astype(np.float64)
            scale = 1.0 / math.sqrt(np.mean(x * x) + eps)
            y = x * scale * weight.astype(np.float64)
            for pair in range(half):
                row = cos_sin[token, owners[pair] if owners is not None else 0]
                c, s = row[pair], row[half + pair]
                first, second = (pair, pair + half) if neox else (2 * pair, 2 * pair + 1)
                a, b = y[first], y[second]
                y[first] = a * c - b * s
                y[second] = b * c + a * s
            out[token, head] = y
    return out
