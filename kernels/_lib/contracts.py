"""Check tensors once, at the boundary: a wrong one is a ValueError that names it, what it is and what it has to be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Extent = int | str | None


class Shapes(dict[str, int]):
    """Extents by letter, bound by the first tensor that shows one and required of every later tensor."""


def check_tensor(
    name: str,
    tensor: object,
    *,
    dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    shape: Sequence[Extent] | None = None,
    stride: Sequence[Extent] | None = None,
    device: torch.device | str | None = None,
    contiguous: bool = False,
    align: int | None = None,
    shapes: Shapes | None = None,
) -> torch.Tensor:
    """Return `tensor` when it keeps its contract, else raise ValueError with its name, what it got and what it needs.

    shape    one entry a dimension: an int is exact, None is anything, a letter such as "B" is bound in `shapes` at
             first sight and exact afterwards. stride works the same way, in elements; extents of 1 or 0 have no stride.
    device   a type ("cuda") or an exact device ("cuda:1").
    align    in bytes, of the first element.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name}: got {type(tensor).__name__}, needs a torch.Tensor")
    if dtype is not None:
        allowed = [dtype] if isinstance(dtype, torch.dtype) else list(dtype)
        if tensor.dtype not in allowed:
            raise ValueError(f"{name}: dtype is {tensor.dtype}, needs {' or '.join(map(str, allowed))}")
    if device is not None:
        wanted = torch.device(device)
        if tensor.device.type != wanted.type or wanted.index not in (None, tensor.device.index):
            raise ValueError(f"{name}: device is {tensor.device}, needs {wanted}")
    shapes = Shapes() if shapes is None else shapes
    if shape is not None:
        _check_extents(name, "shape", tensor.shape, shape, shapes)
    if stride is not None:
        seen = [s if extent > 1 else None for s, extent in zip(tensor.stride(), tensor.shape, strict=True)]
        _check_extents(name, "stride", seen, stride, shapes)
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} has stride {tensor.stride()}, needs to be contiguous")
    if align is not None and tensor.data_ptr() % align:
        raise ValueError(f"{name}: starts {tensor.data_ptr() % align} bytes off, needs alignment to {align} bytes")
    return tensor


def check_int(name: str, value: object, low: int, high: int) -> int:
    """Return `value` when it is an int in low..high, else raise ValueError with its name, what it got and the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}: got {value!r}, needs an int in {low}..{high}")
    return value


def _check_extents(name: str, what: str, got: Sequence[int | None], want: Sequence[Extent], shapes: Shapes) -> None:
    needs = tuple(shapes.get(entry, entry) if isinstance(entry, str) else entry for entry in want)
    wrong = len(got) != len(want)
    for have, need in zip(got, needs, strict=False):
        wrong = wrong or (isinstance(need, int) and have is not None and have != need)
    if wrong:
        readable = ", ".join("*" if need is None else str(need) for need in needs)
        raise ValueError(f"{name}: {what} is {tuple(got)}, needs ({readable})")
    for have, entry in zip(got, want, strict=True):
        if isinstance(entry, str) and have is not None and shapes.setdefault(entry, have) != have:
            raise ValueError(f"{name}: {what} is {tuple(got)}, needs {entry} = {shapes[entry]} in every place")
