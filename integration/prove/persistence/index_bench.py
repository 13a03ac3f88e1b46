"""What a namespace of a thousand, a hundred thousand and a million files costs, with the index and without."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from pydantic import BaseModel
from rich.table import Table

from sm120.integration.build.installed_runtime import Runtime, ScriptFailed

COUNTS = (1_000, 100_000, 1_000_000)


class Work(BaseModel):
    """Seconds it took, ms of the longest pause of the server's Python meanwhile, MiB of whoever did it."""

    seconds: float
    pause: float
    mib: float


class Scale(BaseModel):
    """One folder: files, seconds to make them, µs of CPU to ask for a page, ms of pause when idle, and the index's bytes."""

    files: int
    made: float
    exists: float
    idle_pause: float
    index_bytes: int
    built: Work
    evicted: Work
    scanned: Work


def run_scale(
    runtime: Runtime, folder: Path, counts: tuple[int, ...] = COUNTS, *, timeout: float = 5400
) -> list[Scale]:
    """Measure folders of `counts` files on the file system of `folder`; they are removed again.

    Raises ScriptFailed when a page is missing, one too many was deleted, or the script died.
    """
    script = Path(__file__).with_name("bench_index.py")
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for count in counts:
        with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as scratch:
            done = subprocess.run(
                [str(runtime.python), str(script), scratch, str(count)],
                env={**runtime.environment(), "OMP_NUM_THREADS": "1", "NIXL_LOG_LEVEL": "FATAL"},
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        if done.returncode:
            raise ScriptFailed(script, f"ended with {done.returncode}", done.stderr[-3000:])
        found += [Scale(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    return found


def scale_table(found: list[Scale]) -> Table:
    made = Table(title=f"a namespace by its files, {os.cpu_count()} cores; in brackets the cleaner without an index")
    for column in (
        "files",
        "exists, CPU µs a page",
        "of the first",
        "index built, s",
        "a tenth deleted, s",
        "longest pause, ms",
        "idle",
        "MiB",
        "index MB",
    ):
        made.add_column(column, justify="right")
    for scale in found:
        made.add_row(
            f"{scale.files:,}",
            f"{scale.exists:.1f}",
            f"{scale.exists / found[0].exists:.2f}",
            f"{scale.built.seconds:.1f}",
            f"{scale.evicted.seconds:.1f} ({scale.scanned.seconds:.1f})",
            f"{max(scale.built.pause, scale.evicted.pause):.0f} ({scale.scanned.pause:.0f})",
            f"{scale.idle_pause:.0f}",
            f"{max(scale.built.mib, scale.evicted.mib):.0f} ({scale.scanned.mib:.0f})",
            f"{scale.index_bytes / 1e6:.1f}",
        )
    return made
