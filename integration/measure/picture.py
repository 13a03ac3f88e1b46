"""Pictures with known contents: four shapes in cells of a grid, drawn from a seed and packed as PNG."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass

GRID = 3
CELL = 128
# Colour and form of each thing that is drawn; every picture has all of them, in different cells.
SHAPES: dict[str, tuple[int, int, int]] = {
    "red disc": (220, 30, 30),
    "blue square": (30, 60, 220),
    "green triangle": (20, 150, 60),
    "black cross": (0, 0, 0),
}
_PAPER, _LINE = (255, 255, 255), (190, 190, 190)


@dataclass(frozen=True)
class Picture:
    """`cells` maps a shape to (row, column), counted from 1 at the top left."""

    png: bytes
    cells: dict[str, tuple[int, int]]


def picture(seed: str) -> Picture:
    """All shapes in random cells, no two in one."""
    places = [(row, column) for row in range(1, GRID + 1) for column in range(1, GRID + 1)]
    cells = dict(zip(SHAPES, random.Random(f"picture {seed}").sample(places, len(SHAPES)), strict=True))
    return Picture(draw(cells), cells)


def draw(cells: dict[str, tuple[int, int]]) -> bytes:
    """A PNG with every shape of `cells` in its cell.

    Raises:
        ValueError: an unknown shape, or a cell outside the grid.
    """
    inside = {}
    for shape, (row, column) in cells.items():
        if shape not in SHAPES:
            raise ValueError(f"cells has {shape!r}, needs shapes of {', '.join(SHAPES)}")
        if not (1 <= row <= GRID and 1 <= column <= GRID):
            raise ValueError(f"cells puts {shape} at {row},{column}, needs 1 to {GRID}")
        inside[row - 1, column - 1] = shape
    size = GRID * CELL
    rows = []
    for y in range(size):
        line = bytearray()
        for x in range(size):
            here = inside.get((y // CELL, x // CELL))
            # From the middle of the cell, x to the right and y down, in units of a shape's half width.
            u, v = ((at % CELL - CELL / 2) / (CELL / 3) for at in (x, y))
            if here and _covers(here, u, v):
                line += bytes(SHAPES[here])
            else:
                line += bytes(_LINE if x % CELL == 0 or y % CELL == 0 else _PAPER)
        rows.append(bytes(line))
    return png(rows, size)


def _covers(shape: str, u: float, v: float) -> bool:
    if shape == "red disc":
        return u * u + v * v <= 1
    if shape == "blue square":
        return abs(u) <= 0.8 and abs(v) <= 0.8
    if shape == "green triangle":
        return abs(v) <= 0.9 and abs(u) <= (v + 0.9) / 1.8
    return min(abs(u), abs(v)) <= 0.2 and max(abs(u), abs(v)) <= 1


def png(rows: list[bytes], width: int) -> bytes:
    """8-bit RGB rows as PNG (ISO/IEC 15948): header, one compressed block of unfiltered rows, end."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
