"""Which devices are meant, as exact pairs with a reason, and how each is spelled for a compiler.

Support is data: a kernel lists its pairs in kernel.toml, and nothing compares capabilities with `>=`. (12, 1) is newer
than (12, 0) and still a different machine; (10, 0) shares neither tensor core instructions nor shared memory with it.
"""

from __future__ import annotations

from dataclasses import dataclass

SMS = 188
"""Multiprocessors of an RTX PRO 6000 Blackwell."""


@dataclass(frozen=True)
class Capability:
    """One device family: its exact pair, the compiler's name for it, its limits, and why it is or is not meant."""

    pair: tuple[int, int]
    arch: str
    supported: bool
    reason: str


CAPABILITIES = (
    Capability(
        (12, 0),
        "120a",
        True,
        "RTX PRO 6000 Blackwell and RTX 50: what this project is for. 'a', because block-scaled MMA and other "
        "family-specific instructions exist only there; plain 'sm_120' code would compile without them.",
    ),
    Capability(
        (12, 1),
        "121a",
        False,
        "GB10 (DGX Spark): 48 SMs, unified memory, its own kernel paths upstream. Nobody has run our kernels on it.",
    ),
    Capability((10, 0), "100a", False, "B200: tcgen05 and 228 KB of shared memory; its kernels are other kernels."),
    Capability((10, 3), "103a", False, "B300: as (10, 0)."),
    Capability((9, 0), "90a", False, "H100 and H200: wgmma and 228 KB of shared memory; other kernels."),
)


def lookup(pair: tuple[int, int]) -> Capability:
    """The table row of an exact capability pair. Raises ValueError, naming the known pairs, when there is none."""
    for row in CAPABILITIES:
        if row.pair == tuple(pair):
            return row
    known = ", ".join(str(row.pair) for row in CAPABILITIES)
    raise ValueError(f"capability: got {tuple(pair)}, needs one of {known}")


def require(pair: tuple[int, int], kernel: str, capabilities: list[tuple[int, int]]) -> None:
    """Raise ValueError unless `kernel` lists `pair` exactly; the message gives the reason when there is one."""
    if tuple(pair) in [tuple(known) for known in capabilities]:
        return
    why = next((f": {row.reason}" for row in CAPABILITIES if row.pair == tuple(pair)), "")
    raise ValueError(f"{kernel}: device capability is {tuple(pair)}, needs one of {capabilities}{why}")


def arch(pair: tuple[int, int]) -> str:
    """A capability as nvcc, NVRTC and ptxas spell it: (12, 0) is "sm_120a". Raises ValueError for an unknown pair."""
    return f"sm_{lookup(pair).arch}"
