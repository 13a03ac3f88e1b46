"""A simulated SM120 device: tensors on the CPU that call themselves cuda:0, for tests and benches that need one.

Inside `simulated_device()` the device tests and the benches of this project run as they stand: `.cuda()`,
`device="cuda"`, streams, events and graphs answer. What a real device refuses is refused here too: an operation on
tensors of two devices, a CPU tensor given to a Triton kernel, waiting for the device during a capture. Triton kernels
are interpreted with exactly the arguments of the launch, SGLang's JIT modules are the CPU builds of the same sources.

Times mean nothing here, and a test that passes is evidence for the test, not for a device: no rung is earned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from sm120.kernels._kit import simulated_cuda
from sm120.kernels._kit.simulated_cuda import CPU, DEVICE

WAITS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "equal", "allclose", "nonzero")
MOVES = ("copy_", "cpu", "cuda", "to")


class DeviceTensor(torch.Tensor):
    """A tensor whose storage is the CPU's and whose device is cuda:0."""

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


class _Mode(TorchFunctionMode):
    """Sees what has no tensor among its arguments: factories with a device."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


@contextmanager
def simulated_device() -> Iterator[None]:
    """Let `cuda` name a simulated device until the block ends. Raises RuntimeError where Triton is not interpreted."""
    import triton

    if not triton.knobs.runtime.interpret:
        raise RuntimeError("simulated_device: Triton would compile, needs TRITON_INTERPRET=1 before its import")
    from triton.runtime import interpreter

    with ExitStack() as stack:
        for name, stand_in in simulated_cuda.stand_ins().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        stack.enter_context(mock.patch.object(torch, "Generator", simulated_cuda.generator))
        interpret = interpreter.GridExecutor.__call__
        stack.enter_context(mock.patch.object(interpreter.GridExecutor, "__call__", launched(interpret)))
        stack.enter_context(_Mode())
        yield


def launched(launch: Callable[..., None]) -> Callable[..., None]:
    """`launch`, the launch of one kernel on CPU tensors, for tensors of the simulated device, and captured by graphs.

    Raises ValueError for a tensor of the CPU, in words like Triton's.
    """

    @functools.wraps(launch)
    def on_device(*args: Any, **kwargs: Any) -> None:
        for argument in [*args, *kwargs.values()]:
            if isinstance(argument, torch.Tensor) and not isinstance(argument, DeviceTensor):
                raise ValueError(f"a pointer argument is a CPU tensor, {tuple(argument.shape)} (simulated device)")
        with torch._C.DisableTorchFunction():
            args, kwargs = tree_map(_host, (args, kwargs))
            simulated_cuda.run(lambda: launch(*args, **kwargs))

    return on_device


def _call(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """One call of torch: find its device, refuse a mixture, run it on the CPU, and say where the result lies."""
    definition = _custom_op(func)
    if definition is not None:
        with _Mode():
            return definition._init_fn(*args, **kwargs)
    with torch._C.DisableTorchFunction():
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        mine = [x for x in tensors if isinstance(x, DeviceTensor)]
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__", "__delete__"):
            return _on_device(func(*tree_map(_host, args)), mine) if mine else func(*args)
        args, kwargs, target = _destination(name, args, kwargs, DEVICE if mine else CPU)
        if mine:
            _refuse_numpy(name)
            if name in WAITS or target == CPU:
                simulated_cuda.refuse_in_capture(name)
            _refuse_mixture(name, args, tensors)
        _refuse_other_generator(name, kwargs, target)
        if name in ("cpu", "cuda") and bool(mine) == (target == DEVICE):
            return args[0]
        args, kwargs = tree_map(_host, (args, kwargs))
        if name in MOVES and name != "copy_" and bool(mine) != (target == DEVICE):  # to the other memory: a copy
            result = args[0].to(*args[1:], **kwargs).clone()
            return result if mine else result.as_subclass(DeviceTensor)
        if target == DEVICE:
            return _on_device(simulated_cuda.run(lambda: func(*args, **kwargs)), mine)
        return func(*args, **kwargs)


def _destination(name: str, args: tuple, kwargs: dict[str, Any], target: torch.device) -> tuple[tuple, dict, Any]:
    """The arguments without the device that they name, which is CPU's for torch itself; and the device of the result."""
    if name in ("cpu", "cuda"):
        return args[:1], {}, CPU if name == "cpu" else DEVICE
    if name == "to" and len(args) > 1 and isinstance(args[1], torch.Tensor):
        return (args[0], args[1].dtype, *args[2:]), kwargs, DEVICE if isinstance(args[1], DeviceTensor) else CPU
    named = kwargs.get("device")
    if named is None and name == "to":
        named = next((x for x in args[1:] if isinstance(x, torch.device | str)), None)
        args = tuple(x for x in args if not isinstance(x, torch.device | str))
    if named is None:
        return args, kwargs, target
    device = torch.device(named)
    if device.type not in ("cpu", "cuda"):
        return args, kwargs | {"device": device}, device
    if device.index not in (None, 0):
        raise RuntimeError(f"CUDA error: invalid device ordinal, {device} (simulated device)")
    kwargs = {key: value for key, value in kwargs.items() if key != "device"}
    return args, kwargs if name == "to" else kwargs | {"device": CPU}, DEVICE if device.type == "cuda" else CPU


def _refuse_mixture(name: str, args: tuple, tensors: list[torch.Tensor]) -> None:
    """As torch: CPU scalars go with a device's tensors, and so do CPU indices and the source of a copy."""
    if name in MOVES:
        return
    strangers = [x for x in tensors if not isinstance(x, DeviceTensor) and x.dim() > 0]
    if name in ("__getitem__", "__setitem__") and isinstance(args[0], DeviceTensor):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any(isinstance(x, torch.Tensor | list) for x in index):
            return  # a view, and then a copy
        strangers = [x for x in strangers if not any(x is y for y in index)]
    if strangers:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
            f"(simulated device, {name})"
        )


def _refuse_numpy(name: str) -> None:
    if name in ("numpy", "__array__"):
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy (simulated device)")


def _refuse_other_generator(name: str, kwargs: dict[str, Any], target: torch.device) -> None:
    given = kwargs.get("generator")
    if given is not None and simulated_cuda.device_of(given) != target:
        raise RuntimeError(f"Expected a '{target.type}' device type for generator (simulated device, {name})")


def _on_device(result: Any, mine: list[torch.Tensor]) -> Any:
    def wrap(x: Any) -> Any:
        if type(x) is not torch.Tensor:
            return x
        for given in mine:  # an operation in place returns its own argument
            if (given.data_ptr(), given.shape, given.stride(), given.dtype) == (
                x.data_ptr(), x.shape, x.stride(), x.dtype,
            ):  # fmt: skip
                return given
        return x.as_subclass(DeviceTensor)

    return tree_map(wrap, result)


def _host(x: Any) -> Any:
    return x.as_subclass(torch.Tensor) if isinstance(x, DeviceTensor) else x


def _custom_op(func: Callable) -> Any:
    """The definition of an operator that this project registers in Python: it runs with the tensors as they are."""
    from torch._library.custom_ops import OPDEFS

    name = getattr(func, "_qualified_op_name", "")
    return OPDEFS.get(name) if name.startswith("sm120::") else None
