"""Gated delta net target-verify without per-draft state snapshots.

``verify_output_only`` reads each recurrent state once and writes only the outputs of the draft window, plus the few
inputs that a later commit needs. ``recover_accepted`` replays the accepted part of that window from the unchanged
state: one read and one write of the state per layer and request, whatever the accepted length.

Both run the recurrence of the decode kernel, in fp32, on a ``[K, V]`` tile:

    S = exp(g) S;  u = beta (v - S' k);  S = S + k u';  o = S' q

so the only rounding of the state is the store. ``g`` is never positive and is the only thing that is exponentiated.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

MAX_DRAFT_TOKENS = 16
HEAD_DIMS = (64, 128)
STATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class DraftWindow(NamedTuple):
    """What a commit needs of the draft tokens, for one layer or (with a leading layer dim) for all.

    k [..., rows, D, H, K] before normalisation and v [..., rows, D, HV, V], both in the activation dtype;
    log-decay g and beta [..., rows, D, HV] in fp32, exactly as the verify kernel used them.
    """

    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    @classmethod
    def zeros(
        cls,
        *lead: int,
        num_k_heads: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        dtype: torch.dtype,
        device,
    ) -> "DraftWindow":
        """``lead`` is (layers, rows, draft tokens) or (rows, draft tokens)."""
        f32 = dict(dtype=torch.float32, device=device)
        return cls(
            k=torch.zeros(*lead, num_k_heads, head_k_dim, dtype=dtype, device=device),
            v=torch.zeros(*lead, num_v_heads, head_v_dim, dtype=dtype, device=device),
            g=torch.zeros(*lead, num_v_heads, **f32),
            beta=torch.zeros(*lead, num_v_heads, **f32),
        )

    def layer(self, index: int) -> "DraftWindow":
        return DraftWindow(*(x[index] for x in self))


def verify_output_only(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    window: DraftWindow | None = None,
    window_rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Outputs ``[B, T, HV, V]`` of a linear draft chain; ``state`` is only read.

    Args:
        q, k: ``[B, T, H, K]``, any strides with a contiguous last dim; 1 <= T <= 16, K in (64, 128).
        v: ``[B, T, HV, V]``, likewise; V in (64, 128), HV a multiple of H.
        a, b: ``[B, T, HV]`` gate and beta inputs. A_log, dt_bias: ``[HV]``.
        state: ``[slots, HV, V, K]``, contiguous within a slot; fp32, bf16 or fp16.
        state_indices: ``[B]`` integer slots; a negative one marks a padding row, whose outputs are zero.
        window: where to leave what ``recover_accepted`` needs (rows, D >= T, ...); None keeps nothing.
        window_rows: ``[B]`` integer rows of the window, None = the batch row. A negative row or one past the
            end keeps nothing.

    Raises:
        ValueError: naming the tensor, what it is and what it must be.
    """
    B, T, H, K = _dims("k", k, 4)
    HV, V = _dims("v", v, 4)[2:]
    _check_geometry(T, H, HV, K, V)
    _check("q", q, (B, T, H, K), INPUT_DTYPES)
    _check("k", k, (B, T, H, K), (q.dtype,))
    _check("v", v, (B, T, HV, V), (q.dtype,))
    _check("a", a, (B, T, HV), INPUT_DTYPES)
    _check("b", b, (B, T, HV), INPUT_DTYPES)
    _check("A_log", A_log, (HV,), INPUT_DTYPES)
    _check("dt_bias", dt_bias, (HV,), INPUT_DTYPES)
    _check_state(state, (HV, V, K), lead=1)
    _check_index("state_indices", state_indices, B)
    _same_device(q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias, state=state, state_indices=state_indices)
    if window is None:
        window = DraftWindow(k, v, q, q)  # never dereferenced: KEEP is False
        rows = depth = 0
        keep = False
    else:
        rows, depth = _check_window(window, (), H, HV, K, V, q.dtype)
        if depth < T:
            raise ValueError(f"window holds {depth} draft tokens, needs at least T = {T}")
        _same_device(q, window=window.k)
        keep = True
    if window_rows is not None:
        _check_index("window_rows", window_rows, B)
        _same_device(q, window_rows=window_rows)

    out = torch.empty((B, T, HV, V), dtype=v.dtype, device=v.device)
    if B == 0:
        return out
    block_v, num_warps = _tile(V, state.device)
    _verify_kernel[(V // block_v, B, HV)](
        q=q,
        k=k,
        v=v,
        a=a,
        b=b,
        A_log=A_log,
        dt_bias=dt_bias,
        state=state,
        state_indices=state_indices,
        out=out,
        keep_k=window.k,
        keep_v=window.v,
        keep_g=window.g,
        keep_beta=window.beta,
        window_rows=state_indices if window_rows is None else window_rows,
        T=T,
        num_slots=state.shape[0],
        num_rows=rows,
        scale=K**-0.5,
        stride_qb=q.stride(0),
        stride_qt=q.stride(1),
        stride_qh=q.stride(2),
        stride_kb=k.stride(0),
        stride_kt=k.stride(1),
        stride_kh=k.stride(2),
        stride_vb=v.stride(0),
        stride_vt=v.stride(1),
        stride_vh=v.stride(2),
        stride_ab=a.stride(0),
        stride_at=a.stride(1),
        stride_bb=b.stride(0),
        stride_bt=b.stride(1),
        stride_slot=state.stride(0),
        depth=depth,
        H=H,
        HV=HV,
        K=K,
        V=V,
        BV=block_v,
        KEEP=keep,
        HAS_ROWS=window_rows is not None,
        num_warps=num_warps,
    )
    return out


def recover_accepted(
    state: torch.Tensor,
    window: DraftWindow,
    slots: torch.Tensor,
    last_steps: torch.Tensor,
    *,
    track_slots: torch.Tensor | None = None,
    track_steps: torch.Tensor | None = None,
    window_rows: torch.Tensor | None = None,
) -> None:
    """Advance ``state[:, slots]`` over the accepted draft tokens, in place, for all layers in one launch.

    A radix checkpoint inside the accepted tokens is written on the way: the state after ``track_steps`` goes to
    ``track_slots``. Each tile of a state is read before either store, so a checkpoint never sees an advanced state.

    Args:
        state: ``[layers, slots, HV, V, K]``, contiguous within a slot.
        window: all layers (``[layers, rows, D, ...]``), as ``verify_output_only`` left it.
        slots: ``[B]`` integer working slots. last_steps: ``[B]`` integer zero-based last accepted step.
        track_slots, track_steps: ``[B]`` integer checkpoint slots and steps, both or neither.
        window_rows: ``[B]`` integer rows of the window, None = the batch row.

    A negative slot or step, or one past the end, leaves that destination untouched.

    Raises:
        ValueError: naming the tensor, what it is and what it must be.
    """
    L, num_slots, HV, V, K = _dims("state", state, 5)
    H = _dims("window.k", window.k, 5)[3]
    _check_geometry(1, H, HV, K, V)
    _check_state(state, (HV, V, K), lead=2)
    rows, depth = _check_window(window, (L,), H, HV, K, V, window.k.dtype)
    B = slots.shape[0] if slots.dim() == 1 else -1
    indices = dict(slots=slots, last_steps=last_steps)
    if (track_slots is None) != (track_steps is None):
        raise ValueError("track_slots and track_steps go together: one of them is None")
    if track_slots is not None:
        indices |= dict(track_slots=track_slots, track_steps=track_steps)
    if window_rows is not None:
        indices |= dict(window_rows=window_rows)
    for name, index in indices.items():
        _check_index(name, index, B)
    _same_device(state, window=window.k, **indices)
    if B == 0 or L == 0:
        return
    block_v, num_warps = _tile(V, state.device)
    _recover_kernel[(V // block_v, B, L * HV)](
        state=state,
        keep_k=window.k,
        keep_v=window.v,
        keep_g=window.g,
        keep_beta=window.beta,
        slots=slots,
        last_steps=last_steps,
        track_slots=slots if track_slots is None else track_slots,
        track_steps=last_steps if track_steps is None else track_steps,
        window_rows=slots if window_rows is None else window_rows,
        num_slots=num_slots,
        num_rows=rows,
        depth=depth,
        stride_layer=state.stride(0),
        stride_slot=state.stride(1),
        H=H,
        HV=HV,
        K=K,
        V=V,
        BV=block_v,
        TRACK=track_slots is not None,
        HAS_ROWS=window_rows is not None,
        num_warps=num_warps,
    )


@triton.jit
def _unit(x):
    return x * (1.0 / tl.sqrt(tl.sum(x * x) + 1e-6))


@triton.jit
def _advance(S, k, v, g, beta):
    """One token of the recurrence on a [K, BV] tile."""
    S = S * tl.exp(g)
    u = (v - tl.sum(S * k[:, None], 0)) * beta  # [BV]
    return S + k[:, None] * u[None, :]


@triton.jit(do_not_specialize=["T", "num_slots", "num_rows", "depth"])
def _verify_kernel(
    q,
    k,
    v,
    a,
    b,
    A_log,
    dt_bias,
    state,
    state_indices,
    out,
    keep_k,
    keep_v,
    keep_g,
    keep_beta,
    window_rows,
    T,
    num_slots,
    num_rows,
    scale,
    stride_qb,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_ab,
    stride_at,
    stride_bb,
    stride_bt,
    stride_slot,
    depth,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    KEEP: tl.constexpr,
    HAS_ROWS: tl.constexpr,
):
    """grid (V / BV, B, HV)"""
    i_v = tl.program_id(0)
    i_b = tl.program_id(1).to(tl.int64)
    i_hv = tl.program_id(2).to(tl.int64)
    i_h = i_hv // (HV // H)
    o_k = tl.arange(0, K)
    o_v = i_v * BV + tl.arange(0, BV)

    p_out = out + i_b * T * HV * V + i_hv * V + o_v
    slot = tl.load(state_indices + i_b).to(tl.int64)
    if (slot < 0) | (slot >= num_slots):
        for t in range(0, T):
            tl.store(p_out + t * HV * V, tl.zeros([BV], tl.float32).to(out.dtype.element_ty))
        return

    p_state = state + slot * stride_slot + i_hv * V * K + o_v[None, :] * K + o_k[:, None]
    S = tl.load(p_state).to(tl.float32)  # [K, BV]

    if KEEP:
        row = i_b
        if HAS_ROWS:
            row = tl.load(window_rows + i_b).to(tl.int64)
        kept = (row >= 0) & (row < num_rows)

    decay_rate = -tl.exp(tl.load(A_log + i_hv).to(tl.float32))
    bias = tl.load(dt_bias + i_hv).to(tl.float32)
    for t in range(0, T):
        qt = tl.load(q + i_b * stride_qb + t * stride_qt + i_h * stride_qh + o_k).to(tl.float32)
        kt = tl.load(k + i_b * stride_kb + t * stride_kt + i_h * stride_kh + o_k).to(tl.float32)
        vt = tl.load(v + i_b * stride_vb + t * stride_vt + i_hv * stride_vh + o_v).to(tl.float32)
        at = tl.load(a + i_b * stride_ab + t * stride_at + i_hv).to(tl.float32)
        bt = tl.load(b + i_b * stride_bb + t * stride_bt + i_hv).to(tl.float32)

        x = at + bias
        g = decay_rate * tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
        beta = 1.0 / (1.0 + tl.exp(-bt))

        if KEEP:
            cell = row * depth + t
            tl.store(
                keep_v + (cell * HV + i_hv) * V + o_v,
                vt.to(keep_v.dtype.element_ty),
                mask=(o_v < V) & kept,
            )
            if i_v == 0:
                tl.store(keep_g + cell * HV + i_hv, g, mask=kept)
                tl.store(keep_beta + cell * HV + i_hv, beta, mask=kept)
                # one value head of each group writes the key they share
                if i_hv % (HV // H) == 0:
                    tl.store(
                        keep_k + (cell * H + i_h) * K + o_k,
                        kt.to(keep_k.dtype.element_ty),
                        mask=(o_k < K) & kept,
                    )

        S = _advance(S, _unit(kt), vt, g, beta)
        o = tl.sum(S * (_unit(qt) * scale)[:, None], 0)
        tl.store(p_out + t * HV * V, o.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["num_slots", "num_rows", "depth"])
def _recover_kernel(
    state,
    keep_k,
    keep_v,
    keep_g,
    keep_beta,
    slots,
    last_steps,
    track_slots,
    track_steps,
    window_rows,
    num_slots,
    num_rows,
    depth,
    stride_layer,
    stride_slot,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    TRACK: tl.constexpr,
    HAS_ROWS: tl.constexpr,
):
    """grid (V / BV, B, layers * HV)"""
    i_v = tl.program_id(0)
    i_b = tl.program_id(1).to(tl.int64)
    i_lh = tl.program_id(2).to(tl.int64)
    i_l = i_lh // HV
    i_hv = i_lh % HV
    i_h = i_hv // (HV // H)
    o_k = tl.arange(0, K)
    o_v = i_v * BV + tl.arange(0, BV)

    slot = tl.load(slots + i_b).to(tl.int64)
    row = i_b
    if HAS_ROWS:
        row = tl.load(window_rows + i_b).to(tl.int64)
    if (slot < 0) | (slot >= num_slots) | (row < 0) | (row >= num_rows):
        return
    # in 64 bits: cut to 32, a step far outside the window could land inside it
    last = tl.load(last_steps + i_b).to(tl.int64)
    last = tl.where((last >= 0) & (last < depth), last, -1).to(tl.int32)
    end = last
    if TRACK:
        track_slot = tl.load(track_slots + i_b).to(tl.int64)
        track = tl.load(track_steps + i_b).to(tl.int64)
        inside = (track >= 0) & (track < depth) & (track_slot >= 0) & (track_slot < num_slots)
        track = tl.where(inside, track, -1).to(tl.int32)
        end = tl.maximum(last, track)
    if end < 0:
        return

    inner = i_hv * V * K + o_v[None, :] * K + o_k[:, None]
    p_layer = state + i_l * stride_layer
    S = tl.load(p_layer + slot * stride_slot + inner).to(tl.float32)  # [K, BV]
    for t in range(0, end + 1):
        cell = (i_l * num_rows + row) * depth + t
        kt = tl.load(keep_k + (cell * H + i_h) * K + o_k).to(tl.float32)
        vt = tl.load(keep_v + (cell * HV + i_hv) * V + o_v).to(tl.float32)
        g = tl.load(keep_g + cell * HV + i_hv)
        beta = tl.load(keep_beta + cell * HV + i_hv)
        S = _advance(S, _unit(kt), vt, g, beta)
        if TRACK:
            at_boundary = t == track
            if at_boundary:
                tl.store(p_layer + track_slot * stride_slot + inner, S.to(state.dtype.element_ty))
        if t == last:
            tl.store(p_layer + slot * stride_slot + inner, S.to(state.dtype.element_ty))


def _tile(V: int, device: torch.device) -> tuple[int, int]:
    """Value columns of a program and its warps. The columns of a state are independent of each other.

    One warp with [128, 8] fp32 holds 32 registers of state a lane, and a single request still fills the device.
    The interpreter pays per program, not per element, so there a program takes all columns.
    """
    return (V if device.type == "cpu" else 8), 1


def _dims(name: str, x: torch.Tensor, rank: int) -> tuple:
    if x.dim() != rank:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, needs {rank} dims")
    return tuple(x.shape)


def _check_geometry(T: int, H: int, HV: int, K: int, V: int) -> None:
    if not 1 <= T <= MAX_DRAFT_TOKENS:
        raise ValueError(f"k has T = {T} draft tokens, needs 1..{MAX_DRAFT_TOKENS}")
    for name, dim in (("K", K), ("V", V)):
        if dim not in HEAD_DIMS:
            raise ValueError(f"head dim {name} is {dim}, needs one of {HEAD_DIMS}")
    if H < 1 or HV % H:
        raise ValueError(f"v has HV = {HV} heads, needs a multiple of the {H} key heads")


def _check(name: str, x: torch.Tensor, shape: tuple, dtypes: tuple) -> None:
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, needs {shape}")
    if x.dtype not in dtypes:
        raise ValueError(f"{name} is {x.dtype}, needs one of {dtypes}")
    if x.numel() and x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(f"{name} has strides {x.stride()}, needs a contiguous last dim")


def _check_state(state: torch.Tensor, inner: tuple, lead: int) -> None:
    if state.dim() != lead + 3 or tuple(state.shape[lead:]) != inner:
        raise ValueError(f"state has shape {tuple(state.shape)}, needs {lead} leading dims and then {inner}")
    if state.dtype not in STATE_DTYPES:
        raise ValueError(f"state is {state.dtype}, needs one of {STATE_DTYPES}")
    _, V, K = inner
    if state.stride()[lead:] != (V * K, K, 1):
        raise ValueError(f"state has strides {state.stride()}, needs each slot contiguous")


def _check_window(window: DraftWindow, lead: tuple, H: int, HV: int, K: int, V: int, dtype) -> tuple[int, int]:
    rank = len(lead) + 2
    rows_depth = tuple(window.k.shape[len(lead) : rank])
    for name, x, inner, want in (
        ("window.k", window.k, (H, K), dtype),
        ("window.v", window.v, (HV, V), dtype),
        ("window.g", window.g, (HV,), torch.float32),
        ("window.beta", window.beta, (HV,), torch.float32),
    ):
        _check(name, x, (*lead, *rows_depth, *inner), (want,))
        if not x.is_contiguous():
            raise ValueError(f"{name} has strides {x.stride()}, needs to be contiguous")
    return rows_depth


def _check_index(name: str, x: torch.Tensor, length: int) -> None:
    if x.dim() != 1 or x.shape[0] != length:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, needs ({max(length, 0)},)")
    if x.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} is {x.dtype}, needs int32 or int64")
    if x.numel() > 1 and x.stride(0) != 1:
        raise ValueError(f"{name} has stride {x.stride(0)}, needs to be contiguous")


def _same_device(anchor: torch.Tensor, **others: torch.Tensor) -> None:
    for name, x in others.items():
        if x.device != anchor.device:
            raise ValueError(f"{name} is on {x.device}, needs {anchor.device} like the rest")
