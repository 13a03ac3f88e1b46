"""The memory an interpreted launch may touch: the storages of the tensors it was given, and nothing beside them.

Triton 3.8.0's interpreter reads and writes the memory of this very process and checks no address, so that a wrong kernel
can change a Python object which some later, unrelated test then meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


class OutOfBoundsError(IndexError):
    """A load, store or atomic touched memory outside every tensor of its launch; the message says where."""


class LaunchMemory:
    """Byte ranges of the storages behind `arguments`: tensors, tensor descriptors and tuples of them; others are ignored."""

    def __init__(self, arguments: Iterable[object]) -> None:
        merged: list[tuple[int, int]] = []
        for first, end in sorted(_spans(arguments)):
            if merged and first < merged[-1][1]:  # two storages may share memory
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((first, end))
        self._first, self._end = (np.array([span[side] for span in merged], dtype=np.uint64) for side in (0, 1))

    def check(self, what: str, addresses: np.ndarray, mask: np.ndarray, element_bytes: int) -> None:
        """Raise OutOfBoundsError unless each element at `addresses` (uint64) with a true `mask` lies inside one storage."""
        touched = addresses[np.broadcast_to(mask, addresses.shape).astype(bool)]
        if touched.size == 0:
            return
        owner = np.searchsorted(self._first, touched, side="right") - 1
        inside = owner >= 0
        inside[inside] = touched[inside] + np.uint64(element_bytes) <= self._end[owner[inside]]
        if not inside.all():
            count, wild = int((~inside).sum()), int(touched[~inside][0])
            raise OutOfBoundsError(
                f"{what}: {count} of {touched.size} elements lie outside every tensor of the launch, the first {self._place(wild)}"
            )

    def _place(self, address: int) -> str:
        spans = [(int(first), int(end)) for first, end in zip(self._first, self._end, strict=True)]
        if not spans:
            return "in no memory at all: no tensor was given"
        first, end = min(spans, key=lambda span: min(abs(address - span[0]), abs(address - span[1])))
        return f"at byte {address - first} of {end - first}"


def _spans(arguments: Iterable[Any]) -> Iterator[tuple[int, int]]:
    for argument in arguments:
        if isinstance(argument, tuple | list):
            yield from _spans(argument)
        elif hasattr(argument, "block_shape"):  # a tensor descriptor
            yield from _spans([argument.base])
        elif hasattr(argument, "data_ptr"):
            tensor = argument if hasattr(argument, "untyped_storage") else argument.base  # a reinterpreted tensor
            storage = tensor.untyped_storage()
            if storage.nbytes():
                yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
