"""The CPU build of the shipped kernel source, called as SGLang's entry and as its JIT module are; inputs for tests."""

from __future__ import annotations

import ctypes
import functools
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sm120.kernels._kit import host_library
from sm120.kernels._kit.host_library import HostLibrary, Mutation
from sm120.kernels._kit.simulated_device import launched
from sm120.kernels.mrope import reference
from sm120.kernels.mrope.axes import axis_map

KERNEL = Path(__file__).resolve().parents[1]
ENTRY = "sglang_fused_qk_norm_mrope.py"
NO_YARN = reference.Yarn()
SOURCE = KERNEL / "tests" / "mrope_host.cpp"
SCALARS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@functools.cache
def library(mutation: Mutation | None = None, only: str | None = None) -> HostLibrary:
    """The CPU build of every variant, or of `only` one by its name; built once a process."""
    defines = {"MROPE_ONLY": ",".join(_tokens(only))} if only else {}
    return host_library.build(SOURCE, include=[KERNEL], defines=defines, mutation=mutation)


def _tokens(variant: str) -> list[str]:
    """A variant's name as the arguments of VARIANT in variants.def."""
    _, scalar, table, d, r, a, pairing = variant.split("_")
    return [scalar, table, d[1:], r[1:], a[1:], pairing]


def variant_names(built: HostLibrary) -> list[str]:
    """The variants that a library holds."""
    lookup = ctypes.CDLL(str(built.path)).mrope_variant
    lookup.restype = ctypes.c_char_p
    lookup.argtypes = [ctypes.c_longlong]
    names = []
    while (name := lookup(len(names))) is not None:
        names.append(name.decode())
    return names


def run(
    built: HostLibrary,
    head_dim: int,
    neox: bool,
    tensors: Sequence[torch.Tensor],
    words: Sequence[int],
    num_q_heads: int,
    num_kv_heads: int,
    eps: float,
    schedule: str = "forward",
) -> None:
    """Launch the variant that SGLang's launcher would: its checks are not part of it."""
    qkv, _, _, positions, cache = tensors
    kind = "f32" if cache.dtype == torch.float32 else "same"
    axes = 3 if positions.dim() == 2 else 1
    pairing = "neox" if neox else "gptj"
    variant = f"mrope_{SCALARS[qkv.dtype]}_{kind}_d{head_dim}_r{cache.shape[1]}_a{axes}_{pairing}"
    sizes = [
        qkv.stride(0), positions.stride(0) if axes == 3 else 0, cache.shape[0], qkv.shape[0], num_q_heads, num_kv_heads,
        positions.dtype == torch.int64,
    ]  # fmt: skip
    name = np.frombuffer(variant.encode() + b"\0", dtype=np.uint8)
    packed, limits = np.array(words, dtype=np.int64), np.array(sizes, dtype=np.int64)
    built.call("mrope_run", name, *tensors, packed, limits, np.array([eps], np.float32), schedule=schedule, seed=7)


def on_cpu(built: HostLibrary, schedule: str = "forward") -> Callable[..., None]:
    """SGLang's `fused_qk_norm_mrope`, with its arguments, on CPU tensors and through the CPU build."""

    def fused_qk_norm_mrope(qkv, q_weight, k_weight, positions, cache, words, num_q, num_kv, head_dim, neox, eps):
        tensors = (qkv, q_weight, k_weight, positions, cache)
        run(built, head_dim, neox, tensors, words, num_q, num_kv, eps, schedule)

    return fused_qk_norm_mrope


def jit_module(built: HostLibrary, dtype: torch.dtype, head_dim: int, rotary_dim: int, neox: bool) -> Any:
    """What SGLang's `load_jit` returns for these template arguments, on the CPU build."""

    def fused_qk_norm_mrope(qkv, q_weight, k_weight, positions, cache, w0, w1, w2, w3, num_q, num_kv, eps):
        assert qkv.dtype == dtype and cache.shape[1] == rotary_dim, "the module was compiled for another shape"
        tensors = (qkv, q_weight, k_weight, positions, cache)
        run(built, head_dim, neox, tensors, (w0, w1, w2, w3), num_q, num_kv, eps)

    return types.SimpleNamespace(fused_qk_norm_mrope=launched(fused_qk_norm_mrope))


def pack(owners: Sequence[int] | None) -> list[int]:
    """The axis of each pair as the kernel takes it: two bits a pair, pair 0 lowest, in four signed 64-bit words."""
    bits = sum(axis << (2 * pair) for pair, axis in enumerate(owners or []))
    return np.frombuffer(bits.to_bytes(32, "little"), dtype=np.int64).tolist()


class Case:
    """Seeded inputs of one variant name, and what the reference makes of them."""

    def __init__(
        self,
        variant: str,
        *,
        tokens: int = 5,
        num_q_heads: int = 4,
        num_kv_heads: int = 2,
        positions: torch.Tensor | None = None,
        position_dtype: torch.dtype = torch.int64,
        yarn: reference.Yarn = NO_YARN,
        seed: int = 0,
    ) -> None:
        scalar, self.table_kind, d, r, a, pairing = _tokens(variant)
        self.variant, self.tokens = variant, tokens
        self.dtype = torch.bfloat16 if scalar == "bf16" else torch.float16
        self.head_dim, self.rotary_dim, self.axes = int(d), int(r), int(a)
        self.neox = pairing == "neox"
        self.num_q_heads, self.num_kv_heads, self.yarn = num_q_heads, num_kv_heads, yarn
        self.base, self.eps = 1e6, 1e-6
        pairs = self.rotary_dim // 2
        rest = pairs - pairs // 3 * 2
        section = [rest, pairs // 3, pairs // 3]
        self.owners = axis_map(section, "interleaved", 2 * pairs) if self.axes == 3 else None

        random = torch.Generator().manual_seed(seed)
        width = (num_q_heads + 2 * num_kv_heads) * self.head_dim
        self.qkv = (torch.randn(tokens, width, generator=random) * 1.7).to(self.dtype)
        self.q_weight = (1.0 + 0.3 * torch.randn(self.head_dim, generator=random)).to(self.dtype)
        self.k_weight = (1.0 + 0.3 * torch.randn(self.head_dim, generator=random)).to(self.dtype)
        if positions is None:
            shape = (3, tokens) if self.axes == 3 else (tokens,)
            positions = torch.randint(0, 600, shape, generator=random)
        self.positions = positions.to(position_dtype)
        self.table = self.table_of(int(positions.max()) + 1 if positions.numel() else 1)

    def table_of(self, length: int) -> torch.Tensor:
        """A cos/sin cache of `length` rows."""
        frequencies = reference.inverse_frequencies(self.rotary_dim, self.base, self.yarn)
        cache = reference.cos_sin_cache(length, frequencies, self.yarn.attention_factor)
        return torch.from_numpy(cache).to(torch.float32 if self.table_kind == "f32" else self.dtype)

    def arguments(self) -> tuple[list[int], int, int, int, bool, float]:
        """What follows the tensors: axis map, heads, head dim, pairing, eps."""
        return pack(self.owners), self.num_q_heads, self.num_kv_heads, self.head_dim, self.neox, self.eps

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """qkv (a fresh copy), weights, positions, table."""
        return self.qkv.clone(), self.q_weight, self.k_weight, self.positions, self.table

    def expected(self) -> torch.Tensor:
        """Q then K heads as the reference has them, float64 `[T, (Hq + Hk) * D]`; a cache's rounding is part of it."""
        heads = self.qkv.double().numpy().reshape(self.tokens, self.num_q_heads + 2 * self.num_kv_heads, self.head_dim)
        angles = self.table.double().numpy()[self.positions.reshape(self.axes, self.tokens).numpy().T]  # [T, A, R]
        q, k = heads[:, : self.num_q_heads], heads[:, self.num_q_heads : self.num_q_heads + self.num_kv_heads]
        parts = [
            reference.qk_norm_mrope(
                x, w.double().numpy(), angles, self.owners, rotary_dim=self.rotary_dim, eps=self.eps, neox=self.neox
            )
            for x, w in ((q, self.q_weight), (k, self.k_weight))
        ]
        return torch.from_numpy(np.concatenate(parts, 1)).reshape(self.tokens, self.width)

    @property
    def width(self) -> int:
        """Columns of Q and K."""
        return (self.num_q_heads + self.num_kv_heads) * self.head_dim


def rounding(dtype: torch.dtype) -> float:
    """Half a unit in the last place, relative: the error that storing a correct value makes at most."""
    return 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
