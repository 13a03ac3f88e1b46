"""Time a launch that finds nothing in L2, and nothing but the launch: no host time, no earlier launch's data."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

WARM_UP, ROUNDS = 20, 50
SWEEPS = 3  # L2 may keep lines of what was there first when as much as it holds is written once


def sweep_bytes(l2_bytes: int) -> int:
    """Bytes to write so that nothing of before is left in an L2 of `l2_bytes`. Raises ValueError for an empty one."""
    if l2_bytes < 1:
        raise ValueError(f"l2_bytes: got {l2_bytes}, needs the size of the device's L2")
    return SWEEPS * l2_bytes


def measure(launch: Callable[[], object], *, warm_up: int = WARM_UP, rounds: int = ROUNDS) -> dict[str, Any]:
    """Median, least and greatest microseconds of one `launch` on device 0 with a cold L2, its name and its clock.

    `launch` runs twice: once to compile, once to be captured. What is timed is the replay of that graph of one launch,
    because its checks, its Triton launcher and its allocations are host work that a slow host would make the result.
    Before every replay L2 is swept. All rounds are enqueued before any is waited for: a sweep keeps the device busy for
    longer than the host needs to enqueue the events and the replay behind it, so none of them waits for the host.
    Raises ValueError for fewer than one round.
    """
    if warm_up < 0 or rounds < 1:
        raise ValueError(f"warm_up, rounds: got {warm_up}, {rounds}, needs at least 0 and 1")
    import torch  # a bench that writes static records does without

    cuda = torch.cuda
    launch()
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        launch()
    size = sweep_bytes(cuda.get_device_properties(0).L2_cache_size)
    sweep = torch.empty(size, dtype=torch.uint8, device="cuda")
    events = []
    for index in range(warm_up + rounds):
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        sweep.fill_(index % 251)
        begin.record()
        graph.replay()
        end.record()
        events.append((begin, end))
    cuda.synchronize()
    times = [begin.elapsed_time(end) * 1000 for begin, end in events[warm_up:]]
    return {
        "us_median": statistics.median(times),
        "us_min": min(times),
        "us_max": max(times),
        "device": cuda.get_device_name(0),
        "clock_mhz": cuda.clock_rate(0),
    }
