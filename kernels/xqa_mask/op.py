"""Checked entry point: pack an XQA draft-block mask on the CPU or on an SM120 device, inside a CUDA graph or not."""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
from typing import Any

import torch

from sm120.kernels._lib import capability
from sm120.kernels._lib.contracts import Shapes, check_int, check_tensor

CAPABILITIES = [(12, 0)]
MAX_DRAFT_LEN = 128
BLOCK_THREADS = 128
KINDS = ("causal", "full", "tree")


def pack_mask(
    kind: str,
    q_len: int,
    *,
    batch: int | None = None,
    cu_seqlens: torch.Tensor | None = None,
    parents: torch.Tensor | None = None,
    ancestors: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    total_q: int | None = None,
    device: torch.device | str | None = None,
    check_values: bool | None = None,
) -> torch.Tensor:
    """Pack the mask that XQA reads for a batch of draft blocks; returns `out`, or a new tensor.

    kind        "causal": draft i sees drafts 0..i. "full": every draft sees the whole block. "tree": a draft sees
                itself and its ancestors, given by `parents` or by `ancestors`.
    q_len       draft tokens a request, or the largest number of them when lengths are ragged; 1..128. It fixes the row
                width W = 2 * ceil(q_len / 32), and has to be the q_len that the attention kernel is called with.
    batch       requests, for fixed lengths.
    cu_seqlens  [B + 1] int32, for ragged lengths: request b owns rows cu_seqlens[b]..cu_seqlens[b + 1].
    parents     [B, q_len] or [total_q] int32: index within the request, earlier than its own, or negative for a root.
    ancestors   [B, q_len, q_len] or [total_q, q_len] bool, the visibility itself; columns past a request's length
                are ignored.
    out         [B, q_len, W] or [total_q, W] uint16, contiguous. With it nothing is allocated and nothing waits for
                the device. In a ragged batch it may have more rows than the lengths use; those become zero.
    total_q     rows of a ragged result, needed when there is no `out`.
    check_values  look at lengths and parents, which on a device means waiting for it. Default: on the CPU only.
                Unchecked, a wrong parent is treated as a root and a longer request is cut: never a stray access.

    Raises ValueError, naming the argument, for any other dtype, shape, stride, device, length or parent, and for a
    device whose capability is not in CAPABILITIES.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, needs one of {KINDS}")
    check_int("q_len", q_len, 1, MAX_DRAFT_LEN)
    if (batch is None) == (cu_seqlens is None):
        raise ValueError("batch, cu_seqlens: needs exactly one of them")
    if (kind == "tree") != (parents is not None or ancestors is not None) or (
        parents is not None and ancestors is not None
    ):
        raise ValueError(
            f"parents, ancestors: kind {kind!r} needs {'exactly one of them' if kind == 'tree' else 'neither'}"
        )

    target = _common_device(device, out, cu_seqlens, parents, ancestors)
    width = 2 * ((q_len + 31) // 32)
    shapes = Shapes()
    if cu_seqlens is None:
        requests = check_int("batch", batch, 0, 2**31 // MAX_DRAFT_LEN - 1)
        rows = requests * q_len
        leading: tuple[int, ...] = (requests, q_len)
    else:
        check_tensor("cu_seqlens", cu_seqlens, dtype=torch.int32, shape=("B + 1",), contiguous=True, shapes=shapes)
        requests = check_int("cu_seqlens entries - 1", cu_seqlens.shape[0] - 1, 0, 2**31 // MAX_DRAFT_LEN - 1)
        if out is not None:
            total_q = check_tensor("out", out, shape=(None, width)).shape[0]
        rows = check_int("total_q", total_q, 0, 2**31 - 1)
        leading = (rows,)
    if out is None:
        out = torch.empty((*leading, width), dtype=torch.uint16, device=target)
    check_tensor("out", out, dtype=torch.uint16, shape=(*leading, width), contiguous=True, align=4 if rows else None)
    if parents is not None:
        check_tensor("parents", parents, dtype=torch.int32, shape=leading, contiguous=True)
    if ancestors is not None:
        check_tensor("ancestors", ancestors, dtype=torch.bool, shape=(*leading, q_len), contiguous=True)
    if target.type == "cuda":
        capability.require(torch.cuda.get_device_capability(target), "xqa_mask", CAPABILITIES)
    elif target.type != "cpu":
        raise ValueError(f"out: device is {target}, needs cpu or cuda")
    if target.type == "cpu" if check_values is None else check_values:
        _check_lengths(cu_seqlens, q_len, rows)
        _check_parents(parents, cu_seqlens, q_len)
    torch.ops.sm120.xqa_mask_pack_(out, cu_seqlens, parents, ancestors, requests, q_len, kind == "full")
    return out


def _common_device(device: torch.device | str | None, *tensors: torch.Tensor | None) -> torch.device:
    given = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    common = torch.device(device) if device is not None else given[0].device if given else torch.device("cpu")
    for name, tensor in zip(("out", "cu_seqlens", "parents", "ancestors"), tensors, strict=True):
        if tensor is not None:
            check_tensor(name, tensor, device=common)
    return given[0].device if given else common


def _check_lengths(cu_seqlens: torch.Tensor | None, q_len: int, rows: int) -> None:
    if cu_seqlens is None:
        return
    offsets = cu_seqlens.tolist()
    lengths = [end - begin for begin, end in itertools.pairwise(offsets)]
    if offsets[0] != 0 or any(not 0 <= length <= q_len for length in lengths):
        raise ValueError(f"cu_seqlens: got {offsets}, needs to start at 0 and to rise by 0..{q_len} a request")
    if offsets[-1] > rows:
        raise ValueError(f"cu_seqlens: ends at {offsets[-1]}, needs at most the {rows} rows of out")


def _check_parents(parents: torch.Tensor | None, cu_seqlens: torch.Tensor | None, q_len: int) -> None:
    if parents is None:
        return
    flat = parents.flatten().tolist()
    offsets = list(range(0, len(flat) + 1, q_len)) if cu_seqlens is None else cu_seqlens.tolist()
    for request, (begin, end) in enumerate(itertools.pairwise(offsets)):
        for index, parent in enumerate(flat[begin:end]):
            if parent >= index:
                where = f"request {request} token {index} has parent {parent}"
                raise ValueError(f"parents: {where}, needs an earlier token or a negative number")


_library = torch.library.Library("sm120", "FRAGMENT")
_library.define(
    "xqa_mask_pack_(Tensor(a!) out, Tensor? cu_seqlens, Tensor? parents, Tensor? ancestors, "
    "int batch, int q_len, bool full) -> ()"
)


def _pack_on_cpu(out, cu_seqlens, parents, ancestors, batch, q_len, full) -> None:
    rows = out.numel() // out.shape[-1]
    lengths = 0 if cu_seqlens is None else cu_seqlens.data_ptr()
    if parents is not None:
        _host().tree(out.data_ptr(), lengths, parents.data_ptr(), rows, batch, q_len)
    elif ancestors is not None:
        _host().matrix(out.data_ptr(), lengths, ancestors.data_ptr(), rows, batch, q_len)
    else:
        _host().chain(out.data_ptr(), lengths, rows, batch, q_len, full)


def _pack_on_cuda(out, cu_seqlens, parents, ancestors, batch, q_len, full) -> None:
    from sm120.kernels._lib import fatbin

    kernel, blocks, arguments = launch_plan(out, cu_seqlens, parents, ancestors, batch, q_len, full)
    if blocks == 0:
        return
    fatbin.load("xqa_mask", out.device.index).launch(
        kernel,
        (blocks, 1, 1),
        (BLOCK_THREADS, 1, 1),
        *arguments,
        stream=torch.cuda.current_stream(out.device).cuda_stream,
    )


def launch_plan(
    out: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    parents: torch.Tensor | None,
    ancestors: torch.Tensor | None,
    batch: int,
    q_len: int,
    full: bool,
) -> tuple[str, int, list[Any]]:
    """Which kernel a packing launches, over how many blocks, with which arguments (ints are pointers)."""
    rows = out.numel() // out.shape[-1]
    slots = rows * ((q_len + 31) // 32)
    pointers = [out.data_ptr(), 0 if cu_seqlens is None else cu_seqlens.data_ptr()]
    sizes = [ctypes.c_int64(rows), ctypes.c_int32(batch), ctypes.c_int32(q_len)]
    if parents is not None:
        return "xqa_mask_tree", -(-slots // BLOCK_THREADS), [*pointers, parents.data_ptr(), *sizes]
    if ancestors is not None:
        return "xqa_mask_matrix", -(-slots // (BLOCK_THREADS // 32)), [*pointers, ancestors.data_ptr(), *sizes]
    return "xqa_mask_chain", -(-slots // BLOCK_THREADS), [*pointers, *sizes, ctypes.c_int32(full)]


_library.impl("xqa_mask_pack_", _pack_on_cpu, "CPU")
_library.impl("xqa_mask_pack_", _pack_on_cuda, "CUDA")
_library.impl("xqa_mask_pack_", lambda *_: None, "Meta")


@functools.cache
def _host() -> Any:
    """The host build of the kernels, which `pip install -e .` compiles."""
    try:
        return importlib.import_module("sm120.kernels.xqa_mask._host")
    except ImportError as error:
        raise RuntimeError("xqa_mask: the host build is not installed; run `pip install -e .` (needs g++)") from error
