"""Inputs whose output *is* the set of tokens that was attended: random data cannot tell a causal mask from a full one.

With Q = K = 0 every visible token has the same weight. Give draft j the unit vector e_j as its value and the prefix the
vector e_q: column j of an output row is then 1/count exactly when the row saw draft j. One column with the prefix at 1
and draft j at 2^(j+1) is the compact form for a few known cases (source: flashinfer #4137, #4199); it is not used to
decode, because a mean alone is ambiguous: after a prefix of 1, drafts {1, 5} and {0, 3, 4, 5} both give 23.
"""

from __future__ import annotations

import torch


def unit_values(prefix_len: int, q_len: int) -> torch.Tensor:
    """[prefix_len + q_len, q_len + 1] float64 values: unit vectors, the last column for the prefix."""
    values = torch.zeros(prefix_len + q_len, q_len + 1, dtype=torch.float64)
    values[:prefix_len, q_len] = 1.0
    values[prefix_len:, :q_len] = torch.eye(q_len, dtype=torch.float64)
    return values


def attended(prefix_len: int, row: torch.Tensor) -> list[int]:
    """The drafts that an output row [q_len + 1] attended.

    Raises AssertionError when the weights are not uniform or the prefix was not seen whole: then the row is no mean.
    """
    drafts = row[:-1].nonzero()[:, 0].tolist()
    count = prefix_len + len(drafts)
    want = torch.zeros_like(row)
    want[drafts] = 1.0 / max(count, 1)
    want[-1] = prefix_len / max(count, 1)
    assert torch.allclose(row, want, rtol=1e-9, atol=0), f"{row.tolist()} is not a mean over prefix and {drafts}"
    return drafts


def power_values(prefix_len: int, q_len: int) -> torch.Tensor:
    """[prefix_len + q_len, 1] float64 values: 1 for the prefix, 2^(j+1) for draft j; q_len up to 50 is exact."""
    if not 1 <= q_len <= 50:
        raise ValueError(f"q_len: got {q_len}, needs 1..50: beyond, sums of powers of two are not exact in float64")
    drafts = 2.0 ** torch.arange(1, q_len + 1, dtype=torch.float64)
    return torch.cat([torch.ones(prefix_len, dtype=torch.float64), drafts])[:, None]
