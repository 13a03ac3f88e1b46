"""The memory that a start takes of the host: its pools, a table that stays there, upstream's reserve and the server."""

from __future__ import annotations

from dataclasses import dataclass

from sm120.integration.serve.capacity import Capacity, number
from sm120.integration.serve.planner.host_tier import HOST_RESERVE
from sm120.integration.serve.planner.resident import Part
from sm120.integration.serve.planner.weights import Weights
from sm120.integration.serve.profile import Profile

# Three Python processes with the CUDA libraries, torch and the tokenizer. Reserve; 2 GB were seen without CUDA.
SERVER = 6 * 10**9
# Two buffers a pool, each of as many pages as fit into it (docs/persistence.md), resident from the start where a pool's
# pages cannot go to O_DIRECT as they lie.
BOUNCE = 2 << 30


@dataclass(frozen=True)
class HostNeed:
    """Parts, in bytes; their sum is what must be available."""

    parts: list[Part]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def told(self) -> str:
        """Parts in one line, in GB."""
        return ", ".join(f"{part.name} {part.bytes / 1e9:.1f}" for part in self.parts)


def host_need(profile: Profile, weights: Weights | None, found: Capacity | None) -> HostNeed:
    """What `profile` needs of the host. Each rank of tp-size has host pools of its own.

    Without a plan `hicache-size` stands for its pools, without weights there is no table.
    """
    parts, ranks = [], max(1, number(profile, "tp-size", 1))
    if found is not None and found.host is not None:
        parts.append(Part("host tier", ranks * (found.host.kv_bytes + found.host.state_bytes), "kv and states"))
        if found.host.draft_bytes:
            parts.append(Part("draft on top", ranks * found.host.draft_bytes, "one slot for each of the target's"))
    elif profile.argument("enable-hierarchical-cache"):
        parts.append(Part("host tier", int(ranks * float(profile.argument("hicache-size", 0)) * 1e9), "hicache-size"))
    if weights is not None and weights.host:
        parts.append(Part("n-gram table", weights.host, "ple-offload-embedding"))
    if profile.argument("enable-hierarchical-cache"):
        parts.append(Part("upstream's reserve", HOST_RESERVE, "HICACHE_HOST_MEMORY_RESERVE_BYTES"))
    if profile.argument("hicache-storage-backend") == "nixl":
        pools = 3 if profile.planner.model.get("indexer_head_dim") else 2
        parts.append(Part("NIXL buffers", ranks * pools * BOUNCE, "at most"))
    parts.append(Part("server", SERVER, "reserve"))
    return HostNeed(parts)
