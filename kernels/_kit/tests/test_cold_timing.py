"""What lies between two events is one replay behind a whole sweep of L2, whatever the host does."""

from __future__ import annotations

import contextlib
import sys
import types
from pathlib import Path

import pytest

from sm120.kernels._kit import cold_timing, mutated_module

L2 = 128 * 2**20


class Device:
    """A torch whose device keeps the order of what it was given; a replay takes 1, 2, 3, ... milliseconds."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.done: list[str] = []
        self.replays = 0
        self.capturing = False
        self.cuda = types.SimpleNamespace(
            CUDAGraph=lambda: types.SimpleNamespace(replay=self._replay),
            graph=self._graph,
            Event=self._event,
            synchronize=lambda: self.done.append("wait"),
            get_device_properties=lambda index: types.SimpleNamespace(L2_cache_size=L2),
            get_device_name=lambda index: "RTX",
            clock_rate=lambda index: 2600,
        )

    @contextlib.contextmanager
    def _graph(self, graph):
        self.capturing = True
        yield
        self.capturing = False

    def _replay(self) -> None:
        self.replays += 1
        self.done.append("replay")

    def _event(self, enable_timing: bool):
        assert enable_timing
        event = types.SimpleNamespace(at=None)

        def record() -> None:
            event.at = self.replays * (self.replays + 1) / 2
            self.done.append("event")

        event.record = record
        event.elapsed_time = lambda end: end.at - event.at
        return event

    def empty(self, size: int, dtype: str, device: str):
        assert (dtype, device) == ("uint8", "cuda")
        return types.SimpleNamespace(fill_=lambda value: self.done.append(f"sweep {size}"))

    def launch(self) -> None:
        self.done.append("captured" if self.capturing else "launch")


def measured(module, **rounds: int) -> tuple[dict, list[str]]:
    device = Device()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", device)
        return module.measure(device.launch, **rounds), device.done


def check_order(module) -> None:
    """One launch to compile, one captured; then a sweep of all of L2 before every replay, and one wait at the end."""
    _, done = measured(module, warm_up=2, rounds=3)
    a_round = [f"sweep {3 * L2}", "event", "replay", "event"]
    assert done == ["launch", "wait", "captured", *5 * a_round, "wait"]


def check_times(module) -> None:
    """The warm-up is left out, and a millisecond is a thousand microseconds."""
    row, _ = measured(module, warm_up=2, rounds=3)
    assert row == {"us_median": 4000, "us_min": 3000, "us_max": 5000, "device": "RTX", "clock_mhz": 2600}


def test_order() -> None:
    check_order(cold_timing)


def test_times() -> None:
    check_times(cold_timing)


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_order, "        graph.replay()\n", "        launch()\n"),
        (check_order, "        graph.replay()\n", "        graph.replay()\n        graph.replay()\n"),
        (check_order, "        end.record()\n", "        end.record()\n        cuda.synchronize()\n"),
        (check_order, "        sweep.fill_(index % 251)\n        begin.record()\n",
         "        begin.record()\n        sweep.fill_(index % 251)\n"),
        (check_order, "        sweep.fill_(index % 251)\n", "        if index == 0: sweep.fill_(1)\n"),
        (check_order, "SWEEPS * l2_bytes", "l2_bytes // 2"),
        (check_times, "events[warm_up:]", "events"),
    ],
    ids=["host_time", "second_is_warm", "waits_for_the_host", "sweep_is_timed", "one_sweep", "half_of_l2", "warm_up"],
)  # fmt: skip
def test_a_wrong_twin_is_rejected(tmp_path: Path, check, old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check(mutated_module.load(Path(cold_timing.__file__), tmp_path, (old, new)))


@pytest.mark.parametrize("rounds", [dict(rounds=0), dict(warm_up=-1)], ids=str)
def test_rounds_that_time_nothing_are_refused(rounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="warm_up, rounds: got"):
        measured(cold_timing, **rounds)


def test_an_unknown_l2_is_refused() -> None:
    with pytest.raises(ValueError, match="l2_bytes: got 0"):
        cold_timing.sweep_bytes(0)


@pytest.mark.parametrize("bench", sorted(Path(cold_timing.__file__).parents[1].glob("*/bench.py")), ids=str)
def test_every_bench_times_this_way(bench: Path) -> None:
    source = bench.read_text()
    assert source.count("cold_timing.measure(") == 1 and "Event(" not in source
