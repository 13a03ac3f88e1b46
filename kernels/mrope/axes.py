"""Which position axis (temporal, height, width) turns each rotary pair."""

from __future__ import annotations

from collections.abc import Sequence

LAYOUTS = ("sectioned", "interleaved", "glm_interleaved")


def axis_map(section: Sequence[int], layout: str, rotary_dim: int) -> list[int]:
    """Axis (0 temporal, 1 height, 2 width) of each of the `rotary_dim / 2` rotary pairs.

    `sectioned` lays the three sections out one after the other (Qwen2-VL). `interleaved` gives pairs 1, 4, 7, … to
    height and 2, 5, 8, … to width until their sections are spent, the rest to temporal (Qwen3-VL, Qwen3.5).
    `glm_interleaved` deals the pairs out in turn t, h, w and passes over an axis whose section is spent.

    Raises ValueError when the three sections do not add up to `rotary_dim / 2`.
    Source: `MRotaryEmbedding._build_axis_map` of SGLang 0.5.23 and `apply_interleaved_mrope` of transformers 5.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, needs one of {', '.join(LAYOUTS)}")
    if rotary_dim <= 0 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: got {rotary_dim}, needs a positive even number")
    pairs = rotary_dim // 2
    sizes = [int(size) for size in section]
    if len(sizes) != 3 or min(sizes) < 0 or sum(sizes) != pairs:
        raise ValueError(
            f"mrope_section: got {list(section)} (sum {sum(sizes)}), "
            f"needs three sizes that add up to rotary_dim / 2 = {pairs}"
        )
    if layout == "sectioned":
        return [axis for axis, size in enumerate(sizes) for _ in range(size)]
    if layout == "interleaved":
        return [pair % 3 if pair % 3 and pair < 3 * sizes[pair % 3] else 0 for pair in range(pairs)]
    owners, left = [], list(sizes)
    for pair in range(pairs):
        axis = pair % 3
        while left[axis] == 0:
            axis = (axis + 1) % 3
        left[axis] -= 1
        owners.append(axis)
    return owners
