"""Batches that all the tests share: what to pack, and the same thing in the reference's words."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from sm120.kernels.xqa_mask import reference


@dataclass(frozen=True)
class Case:
    """One batch: its kind, its width, and the draft length of every request."""

    kind: str
    q_len: int
    lengths: tuple[int, ...]
    ragged: bool = False
    by_matrix: bool = False

    def __str__(self) -> str:
        lengths = "x".join(map(str, self.lengths[:5])) or "empty"
        form = "ragged" if self.ragged else "fixed"
        return f"{self.kind}{'-matrix' if self.by_matrix else ''}-{form}-q{self.q_len}-{lengths}"

    @property
    def offsets(self) -> list[int]:
        """Cumulative lengths."""
        offsets = [0]
        for length in self.lengths:
            offsets.append(offsets[-1] + length)
        return offsets

    def parents(self) -> list[list[int]]:
        """A random forest a request, seeded; a token's parent is earlier, about one in five is a root."""
        draw = random.Random(self.q_len * 1000 + len(self.lengths))
        return [[draw.randrange(i) if i and draw.random() > 0.2 else -1 for i in range(n)] for n in self.lengths]

    def tables(self) -> list[list[list[bool]]]:
        """The reference's visibility tables."""
        if self.kind != "tree":
            return [reference.visible_drafts(self.kind, n) for n in self.lengths]
        return [reference.visible_drafts("tree", len(p), p) for p in self.parents()]

    def arguments(self, device: str = "cpu") -> dict:
        """Keyword arguments of pack_mask."""
        arguments: dict = {}
        leading: tuple[int, ...] = (len(self.lengths), self.q_len)
        if self.ragged:
            leading = (self.offsets[-1],)
            arguments["cu_seqlens"] = torch.tensor(self.offsets, dtype=torch.int32, device=device)
            arguments["total_q"] = self.offsets[-1]
        else:
            arguments["batch"] = len(self.lengths)
        if self.kind == "tree" and self.by_matrix:
            # columns past a request's length hold rubbish that has to be ignored
            matrix = torch.ones(self.offsets[-1], self.q_len, dtype=torch.bool)
            row = 0
            for table in self.tables():
                for seen in table:
                    matrix[row, : len(seen)] = torch.tensor(seen, dtype=torch.bool)
                    row += 1
            arguments["ancestors"] = matrix.view(*leading, self.q_len).to(device)
        elif self.kind == "tree":
            flat = [parent for request in self.parents() for parent in request]
            arguments["parents"] = torch.tensor(flat, dtype=torch.int32, device=device).view(leading)
        return arguments

    def expected(self) -> torch.Tensor:
        """The reference's packed rows, in the shape that pack_mask returns."""
        packed = reference.pack(self.tables(), self.q_len)
        return packed if self.ragged else packed.view(len(self.lengths), self.q_len, packed.shape[1])


def _every_form(kind: str, q_len: int, lengths: tuple[int, ...], ragged: bool) -> list[Case]:
    return [
        Case(kind, q_len, lengths, ragged, by_matrix) for by_matrix in ((False, True) if kind == "tree" else (False,))
    ]


CASES = [
    case
    for kind in ("causal", "full", "tree")
    for q_len in (1, 2, 8, 15, 16, 17, 31, 32, 33, 64, 65, 128)
    for case in _every_form(kind, q_len, (q_len,) * 3, ragged=False)
]
CASES += [
    case
    for kind in ("causal", "full", "tree")
    for q_len, lengths in (
        (8, (3, 8, 1)),
        (8, (0, 5, 0, 0, 8, 2, 0)),
        (33, (33, 1, 32, 0)),
        (128, (128, 0, 127)),
        (1, (1, 0, 1)),
        (5, (0, 0)),
        (7, ()),
    )
    for case in _every_form(kind, q_len, lengths, ragged=True)
]
CASES += [Case("causal", 4, ()), Case("full", 4, ()), Case("tree", 4, ()), Case("causal", 3, (3,) * 257)]
