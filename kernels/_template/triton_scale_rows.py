"""Rows of a matrix times one factor each."""

import torch
import triton
import triton.language as tl


def scale_rows(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Row r of ``x`` times ``factors[r]``, rounded once.

    x        [R, C] bf16, fp16 or fp32, last axis contiguous
    factors  [R] float32

    Raises ValueError, naming the tensor, for anything else.
    """
    if x.dim() != 2 or x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"x: got {x.dtype} of shape {tuple(x.shape)}, needs a matrix of bf16, fp16 or fp32")
    if x.shape[1] > 1 and x.stride(1) != 1:
        raise ValueError(f"x: strides are {x.stride()}, needs a contiguous last axis")
    if factors.dtype != torch.float32 or factors.shape != x.shape[:1] or not factors.is_contiguous():
        raise ValueError(f"factors: got {factors.dtype} of shape {tuple(factors.shape)}, needs float32 ({x.shape[0]},)")
    if factors.device != x.device:
        raise ValueError(f"factors: is on {factors.device}, needs {x.device} like x")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        block = min(1024, triton.next_power_of_2(x.shape[1]))
        _scale_rows[(x.shape[0], triton.cdiv(x.shape[1], block))](
            x=x,
            factors=factors,
            out=out,
            columns=x.shape[1],
            stride_row=x.stride(0),
            BLOCK=block,
            num_warps=4,
        )
    return out


@triton.jit
def _scale_rows(x, factors, out, columns, stride_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * stride_row + column, mask=inside).to(tl.float32)
    tl.store(out + row * columns + column, (value * tl.load(factors + row)).to(out.dtype.element_ty), mask=inside)
