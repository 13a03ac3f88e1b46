"""Load a fatbin that CMake built and launch its kernels, through cuda-python. Touches no driver where there is none."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch

from sm120.kernels._lib.device import why_no_device

STATIC_SHARED_LIMIT = 48 * 1024  # beyond it a kernel has to be allowed its dynamic shared memory


class NoDevice(RuntimeError):
    """There is nothing to run the kernel on; the message says why."""


class Fatbin:
    """The compiled kernels of one module on one device."""

    def __init__(self, name: str, data: bytes, device_index: int) -> None:
        from cuda.bindings import driver

        self.name = name
        self.device_index = device_index
        self._data = data  # the driver may read it as long as the library lives
        with torch.cuda.device(device_index):
            torch.cuda.current_stream()  # makes the primary context current
            self._library = _value(driver.cuLibraryLoadData(data, None, None, 0, None, None, 0), f"loading {name}")
        self._functions: dict[str, Any] = {}

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        *arguments: object,
        stream: int,
        dynamic_shared_bytes: int = 0,
    ) -> None:
        """Enqueue `kernel` on `stream` (a cudaStream_t as an int: torch's current one can be captured in a graph).

        Arguments are ctypes objects of the kernel's exact parameter types, structures included; an int is a pointer.
        Raises ValueError for a kernel that was not compiled in, RuntimeError with the driver's name for what else went
        wrong.
        """
        from cuda.bindings import driver

        values, addresses = marshal(arguments)
        with torch.cuda.device(self.device_index):
            function = self._function(kernel)
            if dynamic_shared_bytes > STATIC_SHARED_LIMIT:
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _value(driver.cuFuncSetAttribute(function, attribute, dynamic_shared_bytes), f"configuring {kernel}")
            launched = driver.cuLaunchKernel(
                function, *grid, *block, dynamic_shared_bytes, stream, ctypes.addressof(addresses), 0
            )
        _value(launched, f"launching {kernel}")
        del values  # copied by the launch, and needed until then

    def _function(self, kernel: str) -> Any:
        from cuda.bindings import driver

        if kernel not in self._functions:
            found = driver.cuLibraryGetKernel(self._library, kernel.encode())
            if found[0] == driver.CUresult.CUDA_ERROR_NOT_FOUND:
                raise ValueError(f"{self.name}.fatbin: has no kernel {kernel}, needs it among the compiled ones")
            handle = _value(found, f"finding {kernel}")
            self._functions[kernel] = _value(driver.cuKernelGetFunction(handle), f"loading {kernel}")
        return self._functions[kernel]


@functools.cache
def load(name: str, device_index: int = 0) -> Fatbin:
    """Load `sm120/kernels/NAME/NAME.fatbin` on one device.

    Raises NoDevice, before any driver call, where that device is no SM120 one or cannot be used, and FileNotFoundError
    with the way to build it when the fatbin is not installed.
    """
    reason = why_no_device(device_index=device_index)
    if reason is not None:
        raise NoDevice(f"{name}: {reason}")
    return Fatbin(name, read(name), device_index)


def read(name: str) -> bytes:
    """The bytes of an installed fatbin; FileNotFoundError, with the way to build it, when there is none."""
    resource = files(f"sm120.kernels.{name}").joinpath(f"{name}.fatbin")
    if not resource.is_file():
        raise FileNotFoundError(f"{name}.fatbin is not installed: put nvcc on PATH and run `pip install -e .` again")
    return resource.read_bytes()


def marshal(arguments: Sequence[object]) -> tuple[list[Any], ctypes.Array[ctypes.c_void_p]]:
    """Kernel arguments as the driver takes them: the values, and the array of their addresses.

    Both have to outlive the launch. Raises TypeError for what is neither a ctypes object nor a pointer as an int: a
    Python float, say, does not tell how wide the kernel's parameter is.
    """
    values: list[Any] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, int) and not isinstance(argument, bool):
            argument = ctypes.c_void_p(argument)
        if not isinstance(argument, ctypes._SimpleCData | ctypes.Structure | ctypes.Array):
            kind = type(argument).__name__
            raise TypeError(f"argument {position}: got {kind}, needs a ctypes object or a pointer as an int")
        values.append(argument)
    addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    return values, addresses


def _value(result: tuple, doing: str) -> Any:
    status, *values = result
    if status.value != 0:
        raise RuntimeError(f"{doing}: {status.name}")
    return values[0] if values else None
