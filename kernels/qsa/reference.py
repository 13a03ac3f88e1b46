"""The whole QSA path in float64, one obvious loop each: what every kernel and patch of this folder is held against.

hidden → index projection → norms → rotary → compressed keys → block scores → top-k → tokens → attention.
Letters: T query tokens, S context tokens, c compression ratio, Hi index heads of size Di, HQ and HK query and KV heads.
Source: SGLang 0.5.23, `srt/layers/attention/qsa`; the released modules are held against it in tests/runtime/in_runtime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

MROPE_AXES = 3


@dataclass(frozen=True)
class QsaConfig:
    """Shape of one QSA layer. Raises ValueError for a geometry that the released indexer refuses as well."""

    index_heads: int = 4
    index_dim: int = 128
    budget: int = 2048
    ratio: int = 4
    rotary_dim: int = 64
    theta: float = 1e7
    mrope_section: tuple[int, int, int] = (11, 11, 10)
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.ratio < 2:
            raise ValueError(f"ratio: got {self.ratio}, needs 2 or more")
        if self.budget % self.ratio:
            raise ValueError(f"budget: got {self.budget}, needs a multiple of ratio {self.ratio}")
        if sum(self.mrope_section) * 2 != self.rotary_dim or self.rotary_dim > self.index_dim:
            raise ValueError(
                f"mrope_section: got {self.mrope_section}, needs a sum of rotary_dim / 2 with rotary_dim "
                f"{self.rotary_dim} <= index_dim {self.index_dim}"
            )

    @property
    def block_topk(self) -> int:
        return self.budget // self.ratio


def qsa_layer(
    hidden: torch.Tensor,
    rope_positions: torch.Tensor,
    weight: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: QsaConfig,
    scale: float,
    first: int = 0,
) -> torch.Tensor:
    """One request's causal QSA attention over a whole context, [T - first, HQ, D] float64, from query row `first` on.

    hidden [T, hidden], rope_positions [3, T] int, weight [(Hi + 1)·Di, hidden], q_norm and k_norm [Di],
    q [T, HQ, D], k and v [T, HK, D] (after the attention layer's own norms and rotary). Query i attends a subset of
    tokens 0..i: the blocks that its index query ranks highest, and the incomplete block it belongs to.
    """
    index_q, raw_k = project_index(hidden, weight, config)
    index_q = rotate(gemma_rms_norm(index_q, q_norm, config.eps), rope_positions, config)
    keys = compress_keys(raw_k, rope_positions, k_norm, config)
    rows = []
    for position in range(first, hidden.shape[0]):
        visible = (position + 1) // config.ratio
        scores = block_scores(index_q[position], keys[:visible])
        blocks = select_blocks(scores, visible, config.block_topk)
        rows.append(expand_blocks(blocks, position, position + 1, config))
    return sparse_attention(q[first:], k, v, pad_rows(rows), scale)


def project_index(hidden: torch.Tensor, weight: torch.Tensor, config: QsaConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Index queries [T, Hi, Di] and raw keys [T, Di], float64; hidden [T, hidden], weight [(Hi + 1)·Di, hidden]."""
    qk = hidden.double() @ weight.double().T
    width = config.index_heads * config.index_dim
    return qk[:, :width].reshape(-1, config.index_heads, config.index_dim), qk[:, width:]


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) · (1 + weight) over the last axis, float64: the stored weight is the offset from one."""
    x = x.double()
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * (1.0 + weight.double())


def rotate(x: torch.Tensor, rope_positions: torch.Tensor, config: QsaConfig) -> torch.Tensor:
    """Rotate the first rotary_dim elements (NeoX halves) of x [T, …, Di] at rope_positions [3, T]; float64.

    Interleaved mRoPE: pair i turns with the temporal position, except i % 3 == 1 (height) and i % 3 == 2 (width)
    while i is below three times that axis' section.
    """
    x = x.double()
    half = config.rotary_dim // 2
    out = x.clone()
    for pair in range(half):
        axis = pair % MROPE_AXES
        if pair >= config.mrope_section[axis] * MROPE_AXES:
            axis = 0
        angle = rope_positions[axis].double() * config.theta ** (-2.0 * pair / config.rotary_dim)
        angle = angle.reshape(-1, *[1] * (x.ndim - 2))
        cos, sin = torch.cos(angle), torch.sin(angle)
        a, b = x[..., pair], x[..., half + pair]
        out[..., pair] = a * cos - b * sin
        out[..., half + pair] = b * cos + a * sin
    return out


def compress_keys(
    raw_k: torch.Tensor, rope_positions: torch.Tensor, k_norm: torch.Tensor, config: QsaConfig
) -> torch.Tensor:
    """One key per complete group of `ratio` tokens: mean, norm, rotary at the group's first position. [S // c, Di]."""
    groups = raw_k.shape[0] // config.ratio
    keys = torch.empty(groups, config.index_dim, dtype=torch.float64)
    for group in range(groups):
        first = group * config.ratio
        mean = raw_k[first : first + config.ratio].double().mean(0)
        normed = gemma_rms_norm(mean, k_norm, config.eps)
        keys[group] = rotate(normed[None], rope_positions[:, first : first + 1], config)[0]
    return keys


def block_scores(index_q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Σ over index heads of max(0, q_h · k) / sqrt(Di), no head weights: index_q [Hi, Di], keys [N, Di] → [N]."""
    scores = torch.zeros(keys.shape[0], dtype=torch.float64)
    for head in range(index_q.shape[0]):
        scores += torch.clamp(keys.double() @ index_q[head].double(), min=0.0)
    return scores / math.sqrt(index_q.shape[-1])


def select_blocks(scores: torch.Tensor, visible: int, block_topk: int) -> list[int]:
    """The block_topk best of the first `visible` blocks, smallest index first among ties; all of them when they fit.

    A row that fits is the identity and its scores are not read. Kernels may break ties at the threshold differently
    and may order the result differently: compare multisets of selected scores, not indices.
    """
    if visible <= block_topk:
        return list(range(visible))
    ranked = sorted(range(visible), key=lambda block: (-float(scores[block]), block))
    return ranked[:block_topk]


def expand_blocks(blocks: list[int], position: int, length: int, config: QsaConfig) -> list[int]:
    """Tokens attended by the query at `position`: its blocks' tokens below `length`, then the incomplete last group."""
    tokens = [block * config.ratio + i for block in blocks for i in range(config.ratio)][: config.budget]
    tail_start = (position + 1) // config.ratio * config.ratio
    tokens += range(tail_start, position + 1)
    return [token for token in tokens if token < length]


def append_drafts(frozen: list[int], captured_len: int, position: int) -> list[int]:
    """Index share of multi-token prediction: the frozen selection plus every token drafted since, no holes."""
    return frozen + list(range(captured_len, position + 1))


def pad_rows(rows: list[list[int]], width: int | None = None) -> torch.Tensor:
    """Rows of different length as one [T, width] int32 tensor, -1 behind each row's end."""
    width = max(map(len, rows), default=0) if width is None else width
    out = torch.full((len(rows), width), -1, dtype=torch.int32)
    for row, tokens in enumerate(rows):
        out[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    return out


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> torch.Tensor:
    """Softmax attention of each query row over its own slots, [T, HQ, D] float64; a row without slots gives zeros.

    q [T, HQ, D]; k, v [pool slots, HK, D] hold x / scale for a quantised pool; slots [T, N] int, negative entries
    anywhere are skipped. Query head j reads KV head j // (HQ / HK). No mask beyond the selection.
    """
    group = q.shape[1] // k.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row in range(q.shape[0]):
        chosen = slots[row][slots[row] >= 0].long()
        if chosen.numel() == 0:
            continue
        keys, values = k[chosen].double() * k_scale, v[chosen].double() * v_scale
        for head in range(q.shape[1]):
            weights = torch.softmax(keys[:, head // group] @ q[row, head].double() * scale, dim=0)
            out[row, head] = weights @ values[:, head // group]
    return out


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Plain causal attention of the last T of S tokens, [T, HQ, D] float64; q [T, HQ, D], k and v [S, HK, D]."""
    group = q.shape[1] // k.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64)
    first = k.shape[0] - q.shape[0]
    for row in range(q.shape[0]):
        end = first + row + 1
        for head in range(q.shape[1]):
            weights = torch.softmax(k[:end, head // group].double() @ q[row, head].double() * scale, dim=0)
            out[row, head] = weights @ v[:end, head // group].double()
    return out


def quantize_kv(x: torch.Tensor, scale: float) -> torch.Tensor:
    """x / scale as FP8 E4M3, clamped to ±448 before the cast (round to nearest even)."""
    return (x.float() / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
