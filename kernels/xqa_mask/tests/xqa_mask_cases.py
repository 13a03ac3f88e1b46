"""Batches that all the tests share: what to pack, and the same thing in the reference's words."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sm120.kernels.xqa_mask import reference


@dataclass(frozen=True)
class Case:
    """One batch: its width, and the draft length of every request."""

    q_len: int
    lengths: tuple[int, ...]

    def __str__(self) -> str:
        return f"q{self.q_len}-{'x'.join(map(str, self.lengths[:7])) or 'empty'}"

    def offsets(self, device: str = "cpu") -> torch.Tensor:
        """Cumulative lengths, `[batch + 1]` int32."""
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        return ends.to(torch.int32).to(device)

    def expected(self) -> torch.Tensor:
        """The reference's packed rows, `[total_q, words]` uint16."""
        return reference.pack([reference.visible_drafts("causal", length) for length in self.lengths], self.q_len)


CASES = [Case(q_len, (q_len,) * 3) for q_len in (1, 2, 8, 15, 16, 17, 31, 32, 33, 64, 65, 128)]
CASES += [
    Case(8, (3, 8, 1)),
    Case(8, (0, 5, 0, 0, 8, 2, 0)),
    Case(33, (33, 1, 32, 0)),
    Case(128, (128, 0, 127)),
    Case(1, (1, 0, 1)),
    Case(5, (0, 0)),
    Case(7, ()),
    Case(3, (3,) * 257),
]
