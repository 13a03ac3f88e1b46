"""What `--hicache-size` or `--hicache-ratio` becomes: host slots for tokens and for states, and the draft's beside them.

As upstream's `build_hybrid_mamba_stack` (mem_cache/hybrid_cache/hybrid_pool_assembler.py) and its host pools do it: a
size is split by the bytes of the device pools that are mirrored, each share becomes whole slots and one more page, and
a draft with a pool of its own gets one host slot for each of the target's, on top of the size.
"""

from __future__ import annotations

from dataclasses import dataclass

from sm120.integration.serve.planner.pools import checkpoint_bytes, index_bytes_per_token
from sm120.integration.serve.planner.settings import ITEMSIZE, HybridModel, ServerSettings

# Upstream refuses a host pool that would leave less than this (HICACHE_HOST_MEMORY_RESERVE_BYTES).
HOST_RESERVE = 10 << 30


@dataclass(frozen=True)
class HostTier:
    """Slots and bytes of the host pools: `kv_bytes` with index keys, `draft_bytes` on top of what was asked for."""

    tokens: int
    states: int
    kv_bytes: int
    state_bytes: int
    draft_bytes: int

    @property
    def bytes(self) -> int:
        """All that is allocated."""
        return self.kv_bytes + self.state_bytes + self.draft_bytes

    @property
    def tokens_per_state(self) -> int:
        """Prefixes that are shorter than this run out of states before they run out of tokens."""
        return self.tokens // max(self.states, 1)


def host_tier(model: HybridModel, settings: ServerSettings, *, size_gb: float = 0, ratio: float = 0) -> HostTier:
    """The host pools beside device pools of `settings.kv_tokens` tokens; a size in GB (10^9 bytes) wins over a ratio."""
    page, padded = settings.page_size, settings.kv_tokens + settings.page_size
    kv_each = 2 * model.kv_heads * model.head_dim * ITEMSIZE[settings.kv_dtype]
    layers = model.full_layers + model.mtp_layers
    state_each = checkpoint_bytes(model, settings)
    index_each = layers * index_bytes_per_token(model, settings)
    if size_gb > 0:
        # The draft's layers are packed into the target's host pages, but only the target's pool takes part in the split.
        kv_device = padded * model.full_layers * kv_each
        states_device = (settings.mamba_slots + 1) * state_each
        kv_gb = size_gb * kv_device / (kv_device + states_device)
        states_gb = size_gb * states_device / (kv_device + states_device)
        kv_gb *= kv_device / (kv_device + padded * index_each)
        tokens, states = int(kv_gb * 1e9 // (layers * kv_each)), int(states_gb * 1e9 // state_each)
    else:
        tokens, states = int(settings.kv_tokens * ratio), int(settings.mamba_slots * ratio)
    tokens, states = (tokens // page + 1) * page, states + 1
    draft = settings.draft_kv_layers * 2 * settings.draft_kv_heads * settings.draft_head_dim
    return HostTier(
        tokens=tokens,
        states=states,
        kv_bytes=tokens * (layers * kv_each + index_each),
        state_bytes=states * state_each,
        draft_bytes=tokens * draft * ITEMSIZE[settings.kv_dtype],
    )
