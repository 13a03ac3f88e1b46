"""Triton's interpreter with right bf16 and fp8: it converts and multiplies them correctly and refuses everything else.

Triton 3.8.0 keeps bf16 as uint16 and fp8 as uint8, and does integer arithmetic on the bits: `tl.dot` of bf16 returns
8.7e10, `tl.sum` garbage, fp32 -> bf16 truncates, fp32 -> fp8 can be off by 2x, and all of it silently. Inside
`strict_interpreter()` loads, stores, data movement, `.to()` and `tl.dot` operands are right, and any other operation on
such a value raises StrictInterpreterError. Kernels therefore load and convert to fp32 at once. Every element that a launch
touches must lie in a tensor it was given (`launch_memory`), else OutOfBoundsError.

It patches private parts, so it works with exactly one version of Triton. Conversions follow PTX: round to nearest even;
NaN becomes the canonical NaN; fp8 saturates to the largest finite value (cvt.rn.satfinite). Still different from a
device: exp2 and its kin are numpy's, and fp32 operands of `tl.dot` are not rounded to TF32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import triton
import triton.language as tl

from .launch_memory import LaunchMemory

TRITON_VERSION = "3.8.0"

_TORCH = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
_LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
_CANONICAL_NAN = {tl.bfloat16: 0x7FFF, tl.float8e4nv: 0x7F, tl.float8e5: 0x7F}
_BITS_ONLY = (tl.bfloat16, tl.float8e4nv, tl.float8e5, tl.float8e4b8, tl.float8e5b16, tl.float8e4b15)

# Builder methods that only move bits, and are right whatever the bits mean.
_MOVES_BITS = frozenset(
    f"create_{name}"
    for name in (
        *("load", "store", "masked_load", "masked_store", "make_tensor_descriptor"),
        *("descriptor_load", "descriptor_store", "descriptor_gather", "descriptor_scatter"),
        *("reshape", "trans", "expand_dims", "broadcast", "cat", "join", "split", "splat", "unsplat"),
        *("select", "gather", "bitcast"),
    )
)
# Builder methods that touch memory: which of their arguments are the pointers and the mask.
_TOUCHES_MEMORY = {
    "create_masked_load": (0, 1),
    "create_masked_store": (0, 2),
    "create_atomic_rmw": (1, 3),
    "create_atomic_cas": (0, None),
}
_CONVERTS = ("create_fp_to_fp", "create_fp_ext", "create_fp_trunc")


class StrictInterpreterError(NotImplementedError):
    """A bf16 or fp8 value met an operation that the interpreter cannot do right; the message says which."""


def decode(bits: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """The values, as float32, of bf16 (uint16) or fp8 e4m3 / e5m2 (uint8) codes of any shape. Exact; NaN stays NaN."""
    contiguous = np.array(bits, order="C", copy=True)
    return torch.from_numpy(contiguous).view(_TORCH[dtype]).float().numpy()


def encode(values: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """float32 or float16 values as bf16 (uint16) or fp8 (uint8) codes, rounded and saturated as a device does."""
    exact = np.array(values, dtype=np.float32, order="C", copy=True)
    nan = np.isnan(exact)
    if dtype in _LARGEST:
        exact = np.clip(exact, -_LARGEST[dtype], _LARGEST[dtype])
    code = np.uint16 if dtype == tl.bfloat16 else np.uint8
    view = torch.int16 if code is np.uint16 else torch.uint8
    bits = torch.from_numpy(exact).to(_TORCH[dtype]).view(view).numpy().view(code)
    return np.where(nan, code(_CANONICAL_NAN[dtype]), bits)


@contextmanager
def strict_interpreter() -> Iterator[None]:
    """Make the interpreter strict until the block ends; may be nested.

    Raises RuntimeError under another Triton than TRITON_VERSION, whose private parts this has not been tested with.
    Kernels must have been decorated with TRITON_INTERPRET=1 in the environment to be interpreted at all.
    """
    if triton.__version__ != TRITON_VERSION:
        raise RuntimeError(
            f"strict_interpreter: Triton is {triton.__version__}, needs exactly {TRITON_VERSION}; it patches private "
            "parts. Install that version, or run its tests against yours and move TRITON_VERSION."
        )
    from triton.runtime import interpreter

    absent = object()
    replaced: list[tuple[object, str, object]] = []

    def replace(owner: object, name: str, new: object) -> None:
        replaced.append((owner, name, getattr(owner, name, absent)))
        setattr(owner, name, new)

    builder = interpreter.InterpreterBuilder
    try:
        for name in [name for name in dir(builder) if name.startswith("create_")]:
            original = getattr(builder, name)
            if name in _CONVERTS:
                replace(builder, name, _converting(name, original))
            elif name == "create_dot":
                replace(builder, name, _dot)
            elif name == "create_descriptor_load":
                replace(builder, name, _refusing_nan_padding(original))
            elif name == "create_dot_scaled":
                continue  # its operands are read by the two functions replaced below
            elif name not in _MOVES_BITS:
                replace(builder, name, _refusing(name.removeprefix("create_"), original))
        memory: list[LaunchMemory] = []
        for name, places in _TOUCHES_MEMORY.items():
            replace(builder, name, _bounded(name.removeprefix("create_"), getattr(builder, name), places, memory))
        executor = interpreter.GridExecutor
        replace(executor, "_init_args_hst", _noting_memory(executor._init_args_hst, memory))
        replace(builder, "get_bf16", _bf16_constant)  # missing in 3.8.0, and tl.full needs it
        replace(interpreter, "_mxfp_value_handle_to_float32", _scaled_operand(interpreter))
        replace(interpreter, "_e8m0_to_f32", _decode_e8m0)
        reduction = interpreter.ReduceScanOpInterface
        replace(reduction, "check_tensor", _refusing_reduction(reduction.check_tensor))
        yield
    finally:
        for owner, name, old in reversed(replaced):
            if old is absent:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _scalar(value: object) -> tl.dtype | None:
    return getattr(getattr(value, "dtype", None), "scalar", None)


def _only_bits(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_only_bits, value))
    return _scalar(value) in _BITS_ONLY


def _refuse(operation: str, dtype: object) -> None:
    raise StrictInterpreterError(
        f"{operation} on {dtype}: the interpreter would do integer arithmetic on its bits. "
        "Convert to tl.float32 first; bf16 and fp8 may only be loaded, stored, moved, converted or given to tl.dot."
    )


def _refusing(operation: str, original: Callable) -> Callable:
    @functools.wraps(original)
    def checked(self, *args, **kwargs):
        for value in (*args, *kwargs.values()):
            # a type as argument is the destination of a conversion, such as int -> bf16
            if _only_bits(value) or (isinstance(value, tl.dtype) and value.scalar in _BITS_ONLY):
                _refuse(operation, value.scalar if isinstance(value, tl.dtype) else _scalar(value))
        return original(self, *args, **kwargs)

    return checked


def _noting_memory(original: Callable, memory: list[LaunchMemory]) -> Callable:
    @functools.wraps(original)
    def arguments_on_host(self, args, kwargs):
        on_host = original(self, args, kwargs)
        memory[:] = [LaunchMemory([*on_host[0], *on_host[1].values()])]
        return on_host

    return arguments_on_host


def _bounded(
    operation: str, original: Callable, places: tuple[int, int | None], memory: list[LaunchMemory]
) -> Callable:
    pointers_at, mask_at = places

    @functools.wraps(original)
    def checked(self, *args, **kwargs):
        pointers = args[pointers_at]
        mask = np.True_ if mask_at is None else args[mask_at].data
        memory[0].check(operation, pointers.data, mask, max(1, pointers.get_element_ty().primitive_bitwidth // 8))
        return original(self, *args, **kwargs)

    return checked


def _converting(name: str, original: Callable) -> Callable:
    from triton._C.libtriton import ir
    from triton.runtime.interpreter import TensorHandle

    @functools.wraps(original)
    def convert(self, source, destination, *rounding):
        old, new = source.dtype.scalar, destination.scalar
        if old not in _BITS_ONLY and new not in _BITS_ONLY:
            if name == "create_fp_to_fp":
                _refuse(f"fp_downcast_rounding from {old}", new)
            return original(self, source, destination, *rounding)
        for dtype in (old, new):
            if dtype not in (*_TORCH, tl.float16, tl.float32):
                _refuse(f"conversion from {old} to {new}", dtype)
        if rounding and rounding[0] not in (None, ir.ROUNDING_MODE.RTNE):
            _refuse("a rounding other than to nearest even", new)
        values = decode(source.data, old) if old in _TORCH else source.data.astype(np.float32)
        bits = encode(values, new) if new in _TORCH else values.astype(np.dtype(new.name.replace("fp", "float")))
        return TensorHandle(bits, new)

    return convert


def _bf16_constant(self, value):
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(encode(np.array([value]), tl.bfloat16), tl.bfloat16)


def _dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    from triton.runtime.interpreter import TensorHandle

    operands = [decode(h.data, h.dtype.scalar) if h.dtype.scalar in _TORCH else h.data for h in (a, b)]
    for handle in (a, b):
        if handle.dtype.scalar in _BITS_ONLY and handle.dtype.scalar not in _TORCH:
            _refuse("dot", handle.dtype.scalar)
        if handle.dtype.scalar in _TORCH and d.dtype.scalar != tl.float32:
            _refuse(f"dot that accumulates in {d.dtype.scalar}", handle.dtype.scalar)
    return TensorHandle(np.matmul(*operands, dtype=d.data.dtype) + d.data, d.dtype.scalar)


def _refusing_nan_padding(original: Callable) -> Callable:
    from triton._C.libtriton import ir

    @functools.wraps(original)
    def load(self, descriptor, *args, **kwargs):
        element = descriptor.base.dtype.element_ty
        if element in _BITS_ONLY and descriptor.padding == ir.PADDING_OPTION.PAD_NAN:
            _refuse("a tensor descriptor that pads with NaN", element)
        return original(self, descriptor, *args, **kwargs)

    return load


def _scaled_operand(interpreter: object) -> Callable:
    def values(handle):
        if handle.dtype.scalar == tl.uint8:
            return interpreter._e2m1_to_f32(handle.data)
        if handle.dtype.scalar in _TORCH:
            return decode(handle.data, handle.dtype.scalar)
        if handle.dtype.scalar in _BITS_ONLY:
            _refuse("dot_scaled", handle.dtype.scalar)
        return handle.data.astype(np.float32)

    return values


def _decode_e8m0(scale: np.ndarray) -> np.ndarray:
    code = scale.astype(np.uint8).astype(np.int32)
    return np.where(code == 255, np.float32("nan"), np.ldexp(np.float32(1), code - 127)).astype(np.float32)


def _refusing_reduction(original: Callable) -> Callable:
    @functools.wraps(original)
    def check(self, tensors):
        for tensor in tensors:
            if isinstance(tensor, tl.tensor) and _only_bits(tensor.handle):
                _refuse("a reduction or scan", tensor.dtype.scalar)
        return original(self, tensors)

    return check
