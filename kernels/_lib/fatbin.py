"""Load a fatbin that CMake built and launch its kernels, through cuda.core. Touches no driver where there is none."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

from sm120.kernels._lib.device import why_no_device


class NoDevice(RuntimeError):
    """There is nothing to run the kernel on; the message says why."""


class Fatbin:
    """The compiled kernels of one module on one device."""

    def __init__(self, name: str, data: bytes, device_index: int) -> None:
        from cuda.core import Device, ObjectCode

        self.name = name
        self._device = Device(device_index)
        self._device.set_current()
        self._code = ObjectCode.from_fatbin(data)
        self._kernels: dict[str, Any] = {}

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

        Arguments are ctypes scalars of the kernel's exact parameter types; a plain int is a pointer.
        """
        from cuda.core import LaunchConfig, Stream, launch

        self._device.set_current()
        if kernel not in self._kernels:
            self._kernels[kernel] = self._code.get_kernel(kernel)
        config = LaunchConfig(grid=grid, block=block, shmem_size=dynamic_shared_bytes)
        launch(Stream.from_handle(stream), config, self._kernels[kernel], *arguments)


@functools.cache
def load(name: str, device_index: int = 0) -> Fatbin:
    """Load `sm120/kernels/NAME/NAME.fatbin` on one device.

    Raises NoDevice, before any driver call, where no SM120 device can be used, and FileNotFoundError with the way to
    build it when the fatbin is not installed.
    """
    reason = why_no_device()
    if reason is not None:
        raise NoDevice(f"{name}: {reason}")
    return Fatbin(name, read(name), device_index)


def read(name: str) -> bytes:
    """The bytes of an installed fatbin; FileNotFoundError, with the way to build it, when there is none."""
    resource = files(f"sm120.kernels.{name}").joinpath(f"{name}.fatbin")
    if not resource.is_file():
        raise FileNotFoundError(f"{name}.fatbin is not installed: put nvcc on PATH and run `pip install -e .` again")
    return resource.read_bytes()
