"""The CPU build of the shipped kernel source, called with the checked arguments of op.py; and its inputs for tests."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np
import torch

from sm120.kernels._lib import host_library
from sm120.kernels._lib.host_library import HostLibrary, Mutation
from sm120.kernels.mrope import op, reference

KERNEL = Path(__file__).resolve().parents[1]
NO_YARN = reference.Yarn()
SOURCE = KERNEL / "tests" / "mrope_host.cpp"


@functools.cache
def library(mutation: Mutation | None = None, only: str | None = None) -> HostLibrary:
    """The CPU build of every variant, or of `only` one by its name; built once a process."""
    defines = {"MROPE_ONLY": ",".join(_tokens(only))} if only else {}
    return host_library.build(SOURCE, include=[KERNEL], defines=defines, mutation=mutation)


def _tokens(variant: str) -> list[str]:
    """A variant's name as the arguments of VARIANT in variants.def."""
    _, scalar, table, d, r, a, *rest = variant.split("_")
    return [scalar, table, d[1:], r[1:], a[1:], *rest]


def variant_names(built: HostLibrary) -> list[str]:
    """The variants that a library holds."""
    lookup = ctypes.CDLL(str(built.path)).mrope_variant
    lookup.restype = ctypes.c_char_p
    lookup.argtypes = [ctypes.c_longlong]
    names = []
    while (name := lookup(len(names))) is not None:
        names.append(name.decode())
    return names


class _Pointer:
    """What HostLibrary.call takes for a pointer."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def run(built: HostLibrary, *tensors: torch.Tensor, schedule: str = "forward", **arguments: object) -> torch.Tensor:
    """`op.fused_qk_norm_mrope` on CPU tensors, through the CPU build of its kernel."""
    launch = op.prepare(*tensors, **arguments)
    name = ctypes.create_string_buffer(launch.variant.encode())
    built.call(
        "mrope_run",
        _Pointer(ctypes.addressof(name)),
        _Pointer(ctypes.addressof(launch.params)),
        schedule=schedule,
        seed=7,
    )
    out = arguments.get("out")
    return tensors[0] if out is None else out


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
        scalar, self.table_kind, d, r, a, pairing, weights, store = _tokens(variant)
        self.variant, self.tokens = variant, tokens
        self.dtype = torch.bfloat16 if scalar == "bf16" else torch.float16
        self.head_dim, self.rotary_dim, self.axes = int(d), int(r), int(a)
        self.neox, self.gemma, self.stores = pairing == "neox", weights == "gemma", store == "fp8"
        self.num_q_heads, self.num_kv_heads, self.yarn = num_q_heads, num_kv_heads, yarn
        self.base, self.eps = 1e6, 1e-6
        pairs = self.rotary_dim // 2
        rest = pairs - pairs // 3 * 2
        self.owners = interleaved([rest, pairs // 3, pairs // 3]) if self.axes == 3 else None

        random = torch.Generator().manual_seed(seed)
        width = (num_q_heads + 2 * num_kv_heads) * self.head_dim
        self.qkv = (torch.randn(tokens, width, generator=random) * 1.7).to(self.dtype)
        center = 0.0 if self.gemma else 1.0
        self.q_weight = (center + 0.3 * torch.randn(self.head_dim, generator=random)).to(self.dtype)
        self.k_weight = (center + 0.3 * torch.randn(self.head_dim, generator=random)).to(self.dtype)
        if positions is None:
            shape = (3, tokens) if self.axes == 3 else (tokens,)
            positions = torch.randint(0, 600, shape, generator=random)
        self.positions = positions.to(position_dtype)
        self.frequencies = reference.inverse_frequencies(self.rotary_dim, self.base, yarn)
        self.table = self._table(int(positions.max()) + 1 if positions.numel() else 1)

    def _table(self, length: int) -> torch.Tensor:
        from sm120.kernels.mrope.phase import phase_steps

        if self.table_kind == "phase":
            y = self.yarn
            return phase_steps(self.rotary_dim, self.base, factor=y.factor, low=y.low, high=y.high)
        cache = reference.cos_sin_cache(length, self.frequencies, self.yarn.attention_factor)
        return torch.from_numpy(cache).to(torch.float32 if self.table_kind == "f32" else self.dtype)

    def arguments(self) -> dict[str, object]:
        """The keyword arguments of the op."""
        phase = self.table_kind == "phase"
        return {
            "num_q_heads": self.num_q_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rotary_dim": self.rotary_dim,
            "eps": self.eps,
            "axis_map": self.owners,
            "neox": self.neox,
            "gemma": self.gemma,
            "attention_factor": self.yarn.attention_factor if phase else 1.0,
        }

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """qkv (a fresh copy), weights, positions, table."""
        return self.qkv.clone(), self.q_weight, self.k_weight, self.positions, self.table

    def angles(self) -> np.ndarray:
        """cos and sin of every token and axis, float64 `[T, A, rotary_dim]`; a cache's own rounding is part of it."""
        positions = self.positions.reshape(-1, self.tokens).numpy().T  # [T, A]
        if self.table_kind == "phase":
            angle = positions[..., None].astype(np.float64) * self.frequencies
            return np.concatenate([np.cos(angle), np.sin(angle)], -1) * self.yarn.attention_factor
        return self.table.double().numpy()[positions]

    def expected(self) -> torch.Tensor:
        """Q then K heads as the reference has them, float64 `[T, (Hq + Hk) * D]`."""
        heads = self.qkv.double().numpy().reshape(self.tokens, -1, self.head_dim)
        q, k = heads[:, : self.num_q_heads], heads[:, self.num_q_heads : self.num_q_heads + self.num_kv_heads]
        parts = [
            reference.qk_norm_mrope(
                x, w.double().numpy(), self.angles(), self.owners, rotary_dim=self.rotary_dim, eps=self.eps,
                gemma=self.gemma, neox=self.neox,
            )
            for x, w in ((q, self.q_weight), (k, self.k_weight))
        ]  # fmt: skip
        return torch.from_numpy(np.concatenate(parts, 1)).reshape(self.tokens, -1)

    @property
    def width(self) -> int:
        """Columns of Q and K."""
        return (self.num_q_heads + self.num_kv_heads) * self.head_dim


def interleaved(section: list[int]) -> list[int]:
    """Axis map of Qwen3-VL for these sections."""
    from sm120.kernels.mrope.axes import axis_map

    return axis_map(section, "interleaved", 2 * sum(section))


def rounding(dtype: torch.dtype) -> float:
    """Half a unit in the last place, relative: the error that storing a correct value makes at most."""
    return 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
