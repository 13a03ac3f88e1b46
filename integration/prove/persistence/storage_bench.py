"""Storage throughput through the patched path as multiples of what fio reaches on the same disk in the same minutes."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from pydantic import BaseModel
from rich.table import Table

from sm120.integration.build.installed_runtime import Runtime, ScriptFailed
from sm120.integration.common.refusal import Refusal

MIB = 1 << 20
# (page bytes, pages): a small KV page, a typical one, a large one, the recurrent state of a 36-layer gated delta net.
SIZES = ((64 << 10, 128), (MIB, 128), (4 * MIB, 64), (59_019_264, 16))
SHORT_SIZES = ((MIB, 32),)


# What is done in addition: the variant that does it, and the one that does the same without.
STEPS = {
    "padding": ("bounce, padded", "bounce"),
    "splitting in 4": ("bounce, in 4 parts", "bounce"),
    "checksum": ("zero-copy, checksum", "zero-copy"),
    "fsync": ("zero-copy, fsync", "zero-copy"),
}


class Timing(BaseModel):
    """One variant at one page size: seconds per round, bytes moved by a round, and bytes of bounce buffers and memory."""

    page_bytes: int
    variant: str
    write: list[float]
    read: list[float]
    bytes: int
    staging: int
    peak: int

    def rate(self, direction: str) -> float:
        """Median bytes per second."""
        return self.bytes / statistics.median(getattr(self, direction))

    def spread(self, direction: str) -> str:
        seconds = getattr(self, direction)
        low, high = self.bytes / max(seconds) / 1e9, self.bytes / min(seconds) / 1e9
        return f"{self.rate(direction) / 1e9:.2f} ({low:.2f} to {high:.2f})"


def run_bench(
    runtime: Runtime,
    folder: Path,
    *,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    rounds: int = 3,
    processes: int = 4,
    fio: bool = True,
    timeout: float = 1200,
) -> list[Timing]:
    """Measure every variant and fio at every size on the file system of `folder`: `rounds` in each of `processes`.

    Without `fio` nothing says what the disk itself can do: only whether every page arrives, and each path's own rate.

    Where a process got the memory of its buffers shifts all of its rounds alike, by up to a fifth, so one process says
    little. Raises Refusal `tool-missing` without fio, `bench-rounds` with fewer than three rounds in all; ScriptFailed when
    a page failed or the script died.
    """
    if min(rounds, processes) < 1 or rounds * processes < 3:
        raise Refusal("bench-rounds", f"{rounds} rounds in {processes} processes: at least 3 in all make a median")
    if fio and shutil.which("fio") is None:
        why = "fio is not installed: the disk's own speed is half of every number here"
        raise Refusal("tool-missing", why, fix="apt-get install fio, or --no-fio")
    script = Path(__file__).with_name("bench_pages.py")
    timings: dict[tuple[int, str], Timing] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for page_bytes, pages in [size for size in sizes for _ in range(processes)]:
        with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as scratch:
            done = subprocess.run(
                [str(runtime.python), str(script), scratch, str(page_bytes), str(pages), str(rounds), str(int(fio))],
                env={**runtime.environment(), "OMP_NUM_THREADS": "1", "NIXL_LOG_LEVEL": "FATAL"},
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        if done.returncode:
            raise ScriptFailed(script, f"ended with {done.returncode}", done.stderr[-3000:])
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                timing = Timing(page_bytes=page_bytes, **json.loads(line))
                known = timings.setdefault((page_bytes, timing.variant), timing)
                if known is not timing:
                    known.write += timing.write
                    known.read += timing.read
                    known.peak = max(known.peak, timing.peak)
    return list(timings.values())


def table(timings: list[Timing]) -> Table:
    made = Table(title=f"storage throughput, {os.cpu_count()} cores, medians (minimum to maximum)")
    for column in ("page", "path", "write GB/s", "of fio", "read GB/s", "of fio", "staging MiB"):
        made.add_column(column, justify="left" if column == "path" else "right")
    fio = {timing.page_bytes: timing for timing in timings if timing.variant == "fio"}
    for timing in timings:
        base = fio.get(timing.page_bytes)
        cells = []
        for direction in ("write", "read"):
            cells += [timing.spread(direction), f"{timing.rate(direction) / base.rate(direction):.2f}" if base else "?"]
        made.add_row(f"{timing.page_bytes:,}", timing.variant, *cells, f"{timing.staging / MIB:,.0f}")
    return made


def costs(timings: list[Timing]) -> Table:
    """What padding, splitting, checksums and fsync add to the median time, in percent."""
    made = Table(title="what a step adds to the time of a batch, of medians")
    for column in ("page", "step", "write", "read"):
        made.add_column(column, justify="left" if column == "step" else "right")
    found = {(timing.page_bytes, timing.variant): timing for timing in timings}
    for page_bytes in dict.fromkeys(timing.page_bytes for timing in timings):
        for step, (variant, base) in STEPS.items():
            slow, fast = found[page_bytes, variant], found[page_bytes, base]
            cells = [f"{fast.rate(direction) / slow.rate(direction) - 1:+.0%}" for direction in ("write", "read")]
            made.add_row(f"{page_bytes:,}", step, *cells)
    return made
