"""The shipped kernel as the PTX that nvcc makes for sm_120a, called as SGLang's JIT module is."""

from __future__ import annotations

import functools
import struct
import types
from typing import Any

import torch
from mrope_cpu_build import KERNEL, SCALARS

from sm120.kernels._kit.simulated_device import launched
from sm120.kernels._ptx.compile_cuda import nvcc_ptx
from sm120.kernels._ptx.executor import Counts, Executable, reads, updates

THREADS, ELEMENTS = 128, 16  # of a block, and of a head in a lane
MANGLED = {"bf16": "13__nv_bfloat16", "fp16": "6__half"}


@functools.cache
def ptx() -> str:
    """Every variant of variants.def."""
    return nvcc_ptx(KERNEL / "tests" / "mrope_device.cu", include=[KERNEL])


@functools.cache
def executable(scalar: str, table: str, head_dim: int, rotary_dim: int, axes: int, neox: bool) -> Executable:
    # a repeated type is written as a back reference
    kinds = ["f"] if table == "f32" else ["S1_", "S0_", "S_", MANGLED[scalar]]
    for kind in kinds:
        name = f"kernelI{MANGLED[scalar]}{kind}Li{head_dim}ELi{rotary_dim}ELi{axes}ELb{int(neox)}E"
        if name in ptx():
            return Executable(ptx(), name)
    raise KeyError(f"no variant {scalar} {table} d{head_dim} r{rotary_dim} a{axes} neox={neox}")


def launch(
    tensors: Any, words: Any, num_q: int, num_kv: int, head_dim: int, neox: bool, eps: float, **choices: Any
) -> Counts:
    """As the binding launches it: Params filled from the tensors, a lane for sixteen elements of a head."""
    qkv, q_weight, k_weight, positions, cache = tensors
    axes = 3 if positions.dim() == 2 else 1
    table = "f32" if cache.dtype == torch.float32 else "same"
    kernel = executable(SCALARS[qkv.dtype], table, head_dim, cache.shape[1], axes, neox)
    params = struct.pack("<5Q", *(tensor.data_ptr() for tensor in tensors)) + struct.pack("<4q", *words)
    params += struct.pack("<3q", qkv.stride(0), positions.stride(0) if axes == 3 else 0, cache.shape[0])
    params += struct.pack("<4If4x", qkv.shape[0], num_q, num_kv, positions.dtype == torch.int64, eps)
    lanes = qkv.shape[0] * (num_q + num_kv) * (head_dim // ELEMENTS)
    memory = [updates(qkv), reads(q_weight), reads(k_weight), reads(positions), reads(cache)]
    return kernel.launch((-(-lanes // THREADS),), THREADS, [params], memory=memory, **choices)


def jit_module(dtype: torch.dtype, head_dim: int, rotary_dim: int, neox: bool) -> Any:
    """What SGLang's `load_jit` returns for these template arguments."""

    def fused_qk_norm_mrope(qkv, q_weight, k_weight, positions, cache, w0, w1, w2, w3, num_q, num_kv, eps):
        if qkv.shape[0]:
            launch((qkv, q_weight, k_weight, positions, cache), (w0, w1, w2, w3), num_q, num_kv, head_dim, neox, eps)

    return types.SimpleNamespace(fused_qk_norm_mrope=launched(fused_qk_norm_mrope))
