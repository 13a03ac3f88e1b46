"""FlashInfer's own XQA kernel from the wheel, as PTX for sm_120a, at the geometry that a 27B-class hybrid verifies with."""

from __future__ import annotations

import functools
import math
import re
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sm120.kernels._kit import compilers, upstream
from sm120.kernels._ptx.compile_cuda import nvcc_ptx
from sm120.kernels._ptx.executor import Counts, Executable, reads, updates, writes
from sm120.kernels.xqa_mask import reference

# as flashinfer/jit/xqa.py gives them for this geometry
FLAGS: dict[str, int | str] = {
    "NDEBUG": 1,
    "BEAM_WIDTH": 1,
    "USE_INPUT_KV": 0,
    "USE_CUSTOM_BARRIER": 1,
    "TOKENS_PER_PAGE": 64,
    "HEAD_ELEMS": 256,
    "INPUT_FP16": 0,
    "DTYPE": "__nv_bfloat16",
    "CACHE_ELEM_ENUM": 2,
    "HEAD_GRP_SIZE": 6,
    "SLIDING_WINDOW": 0,
    "LOW_PREC_OUTPUT": 0,
    "SPEC_DEC": 1,
    "IS_SPEC_DEC_TREE": 0,
    "MLA_WRAPPER": 0,
    "USE_SM90_MHA": 0,
}
PAGE, DIM, GROUP = (int(FLAGS[name]) for name in ("TOKENS_PER_PAGE", "HEAD_ELEMS", "HEAD_GRP_SIZE"))
# What the host code of mha.cu would pass to the launch, left where it can be read.
SHAPE = """
extern "C" __device__ unsigned int xqa_shape[5] = {
    warp_size * ctaShapeInWarps.x, ctaShapeInWarps.y, ctaShapeInWarps.z, rowsPerBlock, smemSize};
"""


def missing() -> str | None:
    """Why the kernel cannot be compiled here, or None."""
    if compilers.missing_nvcc() is not None:
        return compilers.missing_nvcc()
    return None if _package() else "no flashinfer package, and no unpacked release in build/trees"


def _package() -> Path | None:
    """The package's folder: installed, named by SM120_FLASHINFER, or the unpacked release."""
    root = upstream.package_root("flashinfer")
    if root is not None:
        return root
    trees = Path(__file__).resolve().parents[2] / "build" / "trees"
    return next((path for path in sorted(trees.glob("flashinfer-*/flashinfer")) if "+" not in path.parent.name), None)


def has(text: str) -> bool:
    """Whether mha.cu has this text."""
    root = _package()
    return root is not None and text in (root / "data" / "csrc" / "xqa" / "mha.cu").read_text()


@functools.cache
def ptx(edit: tuple[str, str] | None = None) -> str:
    """mha.cu's PTX; `edit` replaces one text of it, for a twin."""
    root = _package()
    assert root is not None, missing()
    csrc = root / "data" / "csrc"
    with tempfile.TemporaryDirectory() as folder:
        include = [csrc.parent / "include", csrc]
        source = Path(folder) / "mha_sm120.cu"
        text = '#include "xqa/mha.cu"\n'
        if edit is not None:
            mha = (csrc / "xqa" / "mha.cu").read_text()
            assert mha.count(edit[0]) == 1, f"{edit[0]!r} occurs {mha.count(edit[0])} times in mha.cu"
            text = mha.replace(*edit)
            include.append(csrc / "xqa")
        source.write_text(text + SHAPE)
        flags = [f"-D{name}={value}" for name, value in FLAGS.items()]
        flags += ["--expt-relaxed-constexpr", "-DFLASHINFER_ENABLE_BF16", "-DFLASHINFER_ENABLE_FP8_E4M3"]
        return nvcc_ptx(source, include=include, flags=flags)


@functools.cache
def executable(edit: tuple[str, str] | None = None) -> tuple[Executable, list[int]]:
    """The kernel, and its block's three sizes, rows of a block and bytes of shared memory."""
    found = re.search(r"xqa_shape\[\d+\] = \{([^}]*)\}", ptx(edit))
    assert found is not None
    values = [int(value) for value in found[1].split(",")]
    if ".b8 xqa_shape" in ptx(edit):  # bytes, trailing zeros left out
        values += [0] * (20 - len(values))
        values = [int.from_bytes(bytes(values[k : k + 4]), "little") for k in range(0, 20, 4)]
    return Executable(ptx(edit), "kernel_mha"), values


@dataclass
class Verification:
    """Requests of `lengths` KV tokens, the last `drafts` of each drafted; `tables` say what drafts see."""

    lengths: Sequence[int]
    drafts: Sequence[int]
    tables: list[list[list[bool]]]
    q_len: int = 8
    kv_heads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        pages = [-(-length // PAGE) for length in self.lengths]
        shape = (sum(pages), self.kv_heads, PAGE, DIM)
        self.k, self.v = (torch.randn(shape, generator=generator).to(torch.float8_e4m3fn) for _ in "kv")
        self.table = torch.zeros(len(pages), max(pages), dtype=torch.int32)
        order = torch.randperm(sum(pages), generator=generator).int().split(pages)
        for row, own in zip(self.table, order, strict=True):
            row[: len(own)] = own
        self.offsets = torch.tensor([0, *self.drafts], dtype=torch.int32).cumsum(0).int()
        heads = (int(self.offsets[-1]), self.kv_heads * GROUP, DIM)
        self.q = (torch.randn(heads, generator=generator) * 2).bfloat16()
        self.mask = reference.pack(self.tables, self.q_len).view(torch.int16)
        self.scratch = torch.empty(1 << 21, dtype=torch.uint8)

    def run(
        self, *, blocks: int = 1, mask: torch.Tensor | None = None, edit: Any = None, **choices: Any
    ) -> tuple[torch.Tensor, Counts]:
        """What the kernel writes; `blocks` share a sequence."""
        kernel, (x, y, z, rows, shared) = executable(edit)
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        pointers = [self.k, self.v, self.table, lengths]
        cache = struct.pack("<QQQQIi", *(tensor.data_ptr() for tensor in pointers), self.table.shape[1], 0)
        out = torch.empty_like(self.q)
        strides = (self.kv_heads * PAGE, 1, PAGE)  # of a page, a token and a head, in heads
        counts = kernel.launch(
            (blocks, self.kv_heads * -(-self.q_len * GROUP // rows), len(self.lengths)),
            (x, y, z),
            [
                self.q_len, self.kv_heads, GROUP, reads(self.offsets), 1.0, 0, writes(out), reads(self.q),
                reads(self.mask if mask is None else mask), 0, cache, len(self.lengths), 1.0, 0, *strides,
                updates(torch.zeros(64, dtype=torch.int32)), writes(self.scratch),
            ],
            memory=[reads(tensor) for tensor in pointers],
            dynamic_shared=shared,
            **choices,
        )  # fmt: skip
        return out, counts

    def expected(self) -> torch.Tensor:
        """float64 [total drafts, heads, DIM] by `tables`."""
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for b, (length, drafts) in enumerate(zip(self.lengths, self.drafts, strict=True)):
            token = torch.arange(length)
            slot = self.table[b][token // PAGE].long()
            k, v = (pool.double()[slot, :, token % PAGE] for pool in (self.k, self.v))
            for r in range(drafts):
                row = int(self.offsets[b]) + r
                seen = torch.ones(length, dtype=torch.bool)
                seen[length - drafts :] = torch.tensor(self.tables[b][r][:drafts])
                for h in range(self.q.shape[1]):
                    scores = k[:, h // GROUP] @ self.q[row, h].double() / math.sqrt(DIM)
                    scores = torch.where(seen, scores, -torch.inf)
                    out[row, h] = torch.softmax(scores, 0) @ v[:, h // GROUP]
        return out


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative RMS."""
    return float((result.double() - expected).norm() / expected.norm())
