"""Fused QK RMSNorm + (m)RoPE over the rows of a QKV projection.

Covers what ``fused_qknorm_rope`` does not: positions with a temporal, a height
and a width row. Cos and sin come from the model's own ``cos_sin_cache``, so
YaRN and every other way of making that cache are covered as well.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, List, Optional

import torch

from sglang.kernels.jit.utils import cache_once, load_jit, make_cpp_args
from sglang.srt.utils.custom_op import register_custom_op

if TYPE_CHECKING:
    from tvm_ffi.module import Module

    from sglang.srt.layers.rotary_embedding import MRotaryEmbedding

logger = logging.getLogger(__name__)

_PAIRS_PER_WORD = 32
_MAX_WORDS = 4


@cache_once
def _jit_fused_qk_norm_mrope_module(
    dtype: torch.dtype, head_dim: int, rotary_dim: int, is_neox: bool
) -> Module:
    args = make_cpp_args(dtype, head_dim, rotary_dim, is_neox)
    return load_jit(
        "fused_qk_norm_mrope",
        *args,
        cuda_files=["elementwise/fused_qk_norm_mrope_binding.cuh"],
        cuda_wrappers=[("fused_qk_norm_mrope", f"FusedQKNormMropeKernel<{args}>::run")],
    )


@register_custom_op(mutates_args=["qkv"])
def fused_qk_norm_mrope(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    axis_map: List[int],
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    is_neox: bool,
    eps: float,
) -> None:
    """
    Fused QK RMSNorm + RoPE applied in-place on the QKV tensor.

    Args:
        qkv:           [num_tokens, (nq+2*nk)*head_dim] bfloat16 or float16 — modified
                       in-place
        q_weight:      [head_dim] RMSNorm weights for Q, in qkv's dtype
        k_weight:      [head_dim] RMSNorm weights for K, in qkv's dtype
        positions:     [num_tokens], or [3, num_tokens] for temporal, height and width;
                       int32 or int64, unit column stride
        cos_sin_cache: [max_position, rotary_dim] float32 or in qkv's dtype
        axis_map:      axis of each rotary pair, from ``pack_axis_map``
        num_heads_q:   number of query heads on this rank
        num_heads_k:   number of key heads on this rank
        head_dim:      head dimension; must be 64, 128, or 256
        is_neox:       True → NeoX style, False → interleave (GPT-J) style
        eps:           epsilon for RMSNorm
    """
    module = _jit_fused_qk_norm_mrope_module(
        qkv.dtype, head_dim, cos_sin_cache.shape[-1], is_neox
    )
    module.fused_qk_norm_mrope(
        qkv,
        q_weight,
        k_weight,
        positions,
        cos_sin_cache,
        *axis_map,
        num_heads_q,
        num_heads_k,
        eps,
    )


def pack_axis_map(
    rotary_emb: MRotaryEmbedding,
) -> Optional[List[int]]:
    """The rotary pairs' axes as the kernel takes them: two bits a pair, in four
    signed 64-bit words. None if the embedding has no axis map to be read."""
    axis_map = getattr(rotary_emb, "axis_map", None)
    if axis_map is None or axis_map.is_meta:
        return None
    axes = axis_map.tolist()
    if len(axes) > _PAIRS_PER_WORD * _MAX_WORDS or not set(axes) <= {0, 1, 2}:
        return None
    words = [0] * _MAX_WORDS
    for pair, axis in enumerate(axes):
        words[pair // _PAIRS_PER_WORD] |= axis << (2 * (pair % _PAIRS_PER_WORD))
    return [word - (1 << 64) if word >> 63 else word for word in words]


def can_use_fused_qk_norm_mrope(
    rotary_emb: torch.nn.Module, head_dim: int, dtype: torch.dtype
) -> bool:
    """Whether ``fused_qk_norm_mrope`` gives what ``rotary_emb`` would; builds the
    kernel, so that the first call does not have to."""
    from sglang.srt.layers.rotary_embedding.mrope import (
        MRotaryEmbedding,
        YaRNScalingMRotaryEmbedding,
    )

    # Exact types: a subclass may rotate in another way.
    if type(rotary_emb) not in (MRotaryEmbedding, YaRNScalingMRotaryEmbedding):
        return False
    rotary_dim = rotary_emb.rotary_dim
    if (
        rotary_emb._force_native
        or head_dim not in (64, 128, 256)
        or rotary_emb.head_size != head_dim
        or rotary_dim > head_dim
        or rotary_dim % (16 if rotary_emb.is_neox_style else 8)
        or dtype not in (torch.bfloat16, torch.float16)
        or pack_axis_map(rotary_emb) is None
    ):
        return False
    try:
        _jit_fused_qk_norm_mrope_module(
            dtype, head_dim, rotary_dim, rotary_emb.is_neox_style
        )
        return True
    except Exception as e:
        logger.warning(f"Failed to load JIT fused_qk_norm_mrope kernel: {e}")
        return False
