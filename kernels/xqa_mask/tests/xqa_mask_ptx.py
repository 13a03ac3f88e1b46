"""The shipped kernel as the PTX that nvcc makes for sm_120a, called as SGLang's JIT module is."""

from __future__ import annotations

import functools

import torch
from xqa_mask_host_build import FOLDER

from sm120.kernels._ptx.compile_cuda import nvcc_ptx
from sm120.kernels._ptx.executor import Executable, reads, writes

THREADS = 128


@functools.cache
def executable() -> Executable:
    return Executable(nvcc_ptx(FOLDER / "xqa_mask.cuh"), "xqa_mask_ragged")


def xqa_mask_fill(mask: torch.Tensor, cu_seqlens: torch.Tensor, q_len: int, **choices: str) -> None:
    """As the launcher launches it: one thread a 32-bit word. An output that is read, or an input written, is a fault."""
    words = mask.numel() // 2
    if words:
        arguments = [writes(mask), reads(cu_seqlens), mask.shape[0], cu_seqlens.shape[0] - 1, q_len]
        executable().launch((-(-words // THREADS),), THREADS, arguments, **choices)
