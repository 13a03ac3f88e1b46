"""How many warps of a kernel fit on one SM of an SM120 device, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

WARPS_PER_SM = 48
BLOCKS_PER_SM = 24
REGISTERS_PER_SM = 65536
SHARED_BYTES_PER_SM = 102400
SHARED_BYTES_PER_BLOCK = 101376
RESERVED_SHARED_BYTES_PER_BLOCK = 1024
_REGISTERS_PER_ALLOCATION = 256  # a warp's registers are rounded up to this
_SHARED_BYTES_PER_ALLOCATION = 128
_WARPS_PER_ALLOCATION = 4  # four schedulers share an SM; registers are handed out in their multiples


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps an SM, and the resource that ran out first."""

    blocks: int
    warps: int
    limit: str


def occupancy(registers: int, threads: int, shared_bytes: int) -> Occupancy:
    """Residency of a kernel with this many registers a thread, threads a block and bytes of shared memory a block.

    Raises ValueError when not even one block can be launched.
    """
    if not 1 <= threads <= 1024:
        raise ValueError(f"threads: got {threads}, needs 1..1024 a block")
    if shared_bytes > SHARED_BYTES_PER_BLOCK:
        raise ValueError(f"shared_bytes: got {shared_bytes}, needs at most {SHARED_BYTES_PER_BLOCK} a block")
    warps = -(-threads // 32)
    registers_per_warp = _round_up(max(registers, 1) * 32, _REGISTERS_PER_ALLOCATION)
    warps_by_registers = REGISTERS_PER_SM // registers_per_warp // _WARPS_PER_ALLOCATION * _WARPS_PER_ALLOCATION
    shared = _round_up(shared_bytes + RESERVED_SHARED_BYTES_PER_BLOCK, _SHARED_BYTES_PER_ALLOCATION)
    fits = {
        "warps": WARPS_PER_SM // warps,
        "registers": warps_by_registers // warps,
        "shared memory": SHARED_BYTES_PER_SM // shared,
        "blocks": BLOCKS_PER_SM,
    }
    limit = min(fits, key=lambda resource: fits[resource])
    if fits[limit] == 0:
        raise ValueError(f"registers: {registers} a thread leave no room for a block of {threads} threads")
    return Occupancy(fits[limit], fits[limit] * warps, limit)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
