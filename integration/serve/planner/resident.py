"""What stays on the GPU beside weights and pools: what the engine's code says, and what only a device can tell.

The engine counts tokens from the memory that is free after loading, less the part that is not static. So there are two
sums: what is resident by then (it takes tokens), and what comes later and has to fit into the part that is not static.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sm120.integration.common.refusal import Refusal

MIB = 1 << 20

# Kernel modules, cuBLAS, scales that are laid out anew and what the allocator keeps after loading: no code says how
# much. The count published for Flash-Next (824,384 tokens, 78.3 GiB of weights) leaves 0.7 GiB; the two published for
# 27B are within 2 % with the same.
AFTER_LOADING = 700 * MIB
# SGLANG_VLM_CACHE_SIZE_MB (environ.py), kept out of the pools by `mm_runtime_reservation_gb` (kv_cache_configurator.py).
VISION_CACHE_MB = 100
# SGLANG_FLASHINFER_WORKSPACE_SIZE (environ.py), made with the attention backends, after the pools.
ATTENTION_WORKSPACE = 384 * MIB
# Graphs, activations, sampling and storage: the published start peaked 0.94 GiB above its pools, workspace included.
AFTER_POOLS = 576 * MIB


@dataclass(frozen=True)
class Part:
    """One share of the memory: its bytes, and where the number comes from."""

    name: str
    bytes: int
    source: str


def resident(config: Mapping[str, Any], rope: Mapping[str, Any], *, vision: bool, vision_cache_mb: int) -> list[Part]:
    """What takes tokens beside the weights of one model; `config` is its text configuration, `rope` what overrides it."""
    parts = [Part("after loading", AFTER_LOADING, "reserve, read from a published count")]
    table = rope_table(config, rope)
    if table:
        parts.append(table)
    if vision:
        parts.append(Part("vision cache", vision_cache_mb * MIB, "SGLANG_VLM_CACHE_SIZE_MB, kept out of the pools"))
    return parts


def stretched_positions(rope: Mapping[str, Any]) -> int | None:
    """How many positions a table with these factor x original positions has; None where `rope` does not stretch.

    Raises:
        Refusal: `profile-setting` when one of the two is no number.
    """
    if "factor" not in rope or "original_max_position_embeddings" not in rope:
        return None
    try:
        return int(float(rope["factor"]) * int(rope["original_max_position_embeddings"]))
    except (ValueError, TypeError, OverflowError):
        raise Refusal("profile-setting", f"rope: {dict(rope)} has no number where one is needed") from None


def rope_table(config: Mapping[str, Any], rope: Mapping[str, Any]) -> Part | None:
    """Cosines and sines for every position in float32, None where the configuration does not say how many.

    Source: `_compute_cos_sin_cache` of sglang/srt/layers/rotary_embedding; YaRN makes factor x original positions.
    """
    own = {**(config.get("rope_parameters") or config.get("rope_scaling") or {}), **rope}
    positions = config.get("max_position_embeddings")
    positions = stretched_positions(own) or positions
    head, share = config.get("head_dim"), own.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if not positions or not head:
        return None
    rotary = int(int(head) * float(share))
    return Part("rotary table", int(positions) * rotary * 4, f"{int(positions)} positions x {rotary} x 4")


def later() -> list[Part]:
    """What the part that is not static has to hold, at four requests and chunks of up to 8,192 tokens."""
    return [
        Part("attention workspace", ATTENTION_WORKSPACE, "SGLANG_FLASHINFER_WORKSPACE_SIZE"),
        Part("graphs and activations", AFTER_POOLS, "reserve, read from a published peak"),
    ]
