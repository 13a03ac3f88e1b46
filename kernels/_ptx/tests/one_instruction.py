"""A module around a few instructions: inputs and outputs are a vector a lane in global memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sm120.kernels._ptx.executor import Counts, Executable, reads, writes

WIDTHS = {"b16": 2, "b32": 4, "b64": 8}
DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def module(body: str, inputs: Sequence[str], outputs: Sequence[str], shared: int = 0) -> str:
    """PTX of a kernel that loads %a0.. (of `inputs`' types), runs `body`, and stores %d0.. (of `outputs`' types)."""
    lines = [".version 9.0", ".target sm_120a", ".address_size 64", ".visible .entry one("]
    lines.append(",\n".join(f".param .u64 p{k}" for k in range(len(inputs) + len(outputs))) + ")\n{")
    lines += [".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %w<9>; .reg .b32 %lane; .reg .b64 %at;"]
    lines += [f".reg .{kind} %a{k};" for k, kind in enumerate(inputs)]
    lines += [f".reg .{kind} %d{k};" for k, kind in enumerate(outputs)]
    if shared:
        lines.append(f".shared .align 16 .b8 space[{shared}];")
    lines.append("mov.u32 %lane, %tid.x;")
    for k, kind in enumerate(inputs):
        lines += [f"ld.param.u64 %at, [p{k}];", f"mad.wide.u32 %at, %lane, {WIDTHS[kind]}, %at;"]
        lines.append(f"ld.global.{kind} %a{k}, [%at];")
    lines.append(body)
    for k, kind in enumerate(outputs):
        lines += [f"ld.param.u64 %at, [p{len(inputs) + k}];", f"mad.wide.u32 %at, %lane, {WIDTHS[kind]}, %at;"]
        lines.append(f"st.global.{kind} [%at], %d{k};")
    return "\n".join([*lines, "ret;", "}"])


def run(
    body: str,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[str],
    *,
    threads: int = 32,
    shared: int = 0,
    **choices: Any,
) -> list[np.ndarray]:
    """The outputs' bits, unsigned, one a thread. Inputs are arrays of 16, 32 or 64-bit values, one a thread."""
    return counted(body, inputs, outputs, threads=threads, shared=shared, **choices)[0]


def counted(
    body: str,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[str],
    *,
    threads: int = 32,
    shared: int = 0,
    **choices: Any,
) -> tuple[list[np.ndarray], Counts]:
    """`run`, and what it executed."""
    kinds = [f"b{8 * array.itemsize}" for array in inputs]
    given = [torch.from_numpy(np.ascontiguousarray(array).view(f"i{array.itemsize}").copy()) for array in inputs]
    made = [torch.empty(threads, dtype=DTYPES[WIDTHS[kind]]) for kind in outputs]
    executable = Executable(module(body, kinds, outputs, shared))
    counts = executable.launch((1,), threads, [*map(reads, given), *map(writes, made)], **choices)
    return [tensor.numpy().view(f"u{tensor.element_size()}") for tensor in made], counts
