"""Can a device be used? Asked once for each, by the one call that answers without a driver: others raise or hang."""

from __future__ import annotations

import functools


@functools.cache
def why_no_device(capabilities: tuple[tuple[int, int], ...] = ((12, 0),), device_index: int = 0) -> str | None:
    """None when the device has one of the exact `capabilities`, else the reason why nothing can run on it, for people.

    Without a driver only cudaGetDeviceCount is safe: other calls raise, and after a few of them loading code can hang.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        return f"cuda-bindings is not installed ({error})"
    try:
        status, count = runtime.cudaGetDeviceCount()
    except Exception as error:  # whatever the binding raises where the runtime library itself is missing
        return f"no CUDA runtime ({type(error).__name__}: {error})"
    if status != runtime.cudaError_t.cudaSuccess:
        return f"no usable NVIDIA driver (cudaGetDeviceCount: {status.name})"
    if count == 0:
        return "no NVIDIA device"
    status, properties = runtime.cudaGetDeviceProperties(device_index)
    if status != runtime.cudaError_t.cudaSuccess:
        return f"device {device_index} does not answer (cudaGetDeviceProperties: {status.name})"
    pair = (properties.major, properties.minor)
    if pair not in capabilities:
        return f"device {device_index} has capability {pair}, needs one of {list(capabilities)}"
    return None
