"""What stands in `torch.cuda` while a device is simulated: generators, streams, events, and graphs that replay."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

DEVICE, CPU = torch.device("cuda:0"), torch.device("cpu")
# L2 is small, so that sweeping it costs nothing.
PROPERTIES = types.SimpleNamespace(
    name="simulated SM120", major=12, minor=0, L2_cache_size=4096, multi_processor_count=188, total_memory=96 << 30
)

_captures: list[list[tuple[Callable[[], Any], Any]]] = []
_generators: dict[int, torch.Generator] = {}  # those of the device; kept, so that an id stays its own
_Generator = torch.Generator


def stand_ins() -> dict[str, Any]:
    """Attributes of torch.cuda, by name."""
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_name": lambda device=None: PROPERTIES.name,
        "clock_rate": lambda device=None: 0,
        "synchronize": lambda device=None: refuse_in_capture("synchronize"),
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": capture,
    }


def run(function: Callable[[], Any]) -> Any:
    """Call `function`, which works on CPU tensors; a capture keeps it, and its result, for the replays."""
    result = function()
    if _captures:
        _captures[-1].append((function, result))
    return result


def refuse_in_capture(name: str) -> None:
    """Raise RuntimeError for what waits for the device, where a stream is being captured."""
    if _captures:
        raise RuntimeError(f"operation not permitted when stream is capturing: {name} (simulated device)")


def generator(device: Any = "cpu") -> torch.Generator:
    """torch.Generator, which remembers whether it is for the device."""
    made = _Generator()
    if torch.device(device).type == "cuda":
        _generators[id(made)] = made
    return made


def device_of(given: torch.Generator) -> torch.device:
    """The device that a generator was made for."""
    return DEVICE if id(given) in _generators else CPU


class Event:
    """torch.cuda.Event, timed by the host's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._at: float | None = None

    def record(self) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        if self._at is None or end._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time (simulated device)")
        return (end._at - self._at) * 1000


class Graph:
    """torch.cuda.CUDAGraph: runs again what ran during the capture, on the same memory."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[], Any], Any]] | None = None

    def replay(self) -> None:
        if self.calls is None:
            raise RuntimeError("replay of a graph that was not captured (simulated device)")
        with torch._C.DisableTorchFunction():
            for function, first in self.calls:
                for old, new in zip(tree_leaves(first), tree_leaves(function()), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@contextmanager
def capture(graph: Graph) -> Iterator[None]:
    """torch.cuda.graph. What is captured runs once, too: a device would leave its results unset until a replay."""
    _captures.append([])
    try:
        yield
        graph.calls = _captures[-1]
    finally:
        _captures.pop()
