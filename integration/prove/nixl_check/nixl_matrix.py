"""Runs the conformance cases against an installed NIXL and turns the rows into a verdict per queue."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from sm120.integration.common.refusal import Refusal, there_are

QUEUES = ("uring", "aio", "posix_aio")

# What each case protects, and which patch of the runtime makes a failure of it harmless ("" = none does).
CASES: dict[str, tuple[str, str]] = {
    "round-trip": ("bytes come back", ""),
    "short-read": ("a truncated file is an error", "hicache-nixl-size-check"),
    "beyond-2-gib": ("a page over 2 GiB is whole or an error", "hicache-nixl-size-check"),
    "read-only-descriptor": ("one refused write does not stop the tier", ""),
    "crossed-completion": ("the request that failed is the one reported", ""),
    "queue-depth": ("more pieces than the kernel queue", ""),
    "completion-overflow": ("more completions than the ring", ""),
    "duplicate-device-id": ("two files under one id are refused", ""),
    "outside-registered-memory": ("a range outside registered memory is refused", ""),
    "length-mismatch": ("unequal lengths are refused", ""),
    "error-means-finished": ("after an error no I/O is in flight", ""),
    "release-in-flight": ("releasing early does not corrupt", "hicache-nixl-drain"),
    "misaligned-direct-io": ("O_DIRECT misalignment is an error", "hicache-nixl-page-alignment"),
    "no-space": ("a full file system is an error", ""),
    "device-error": ("EIO is an error", ""),
}


class Row(BaseModel):
    queue: str
    case: str
    result: str
    detail: str


class Matrix(BaseModel):
    version: str
    rows: list[Row]

    def row(self, case: str, queue: str) -> Row | None:
        return next((row for row in self.rows if (row.case, row.queue) == (case, queue)), None)

    def ran(self, queue: str) -> bool:
        """Whether any case of a queue has a result."""
        return any(row.queue == queue and row.result != "not run" for row in self.rows)

    def failures(self, queue: str, guarded: bool | None = None) -> list[Row]:
        """Failed rows of a queue: all, only those a runtime patch makes harmless, or only the others."""
        return [
            row
            for row in self.rows
            if row.queue == queue and row.result == "fail" and (guarded is None or bool(CASES[row.case][1]) == guarded)
        ]

    def recommended(self) -> str | None:
        """The first queue, in order of preference, whose every failure a patch of the runtime makes harmless.

        One that nothing was shown of, as no case could run there, is none.
        """
        tested = [queue for queue in QUEUES if self.ran(queue)]
        return next((queue for queue in tested if not self.failures(queue, guarded=False)), None)

    def setting(self) -> str:
        """TOML for --hicache-storage-backend-extra-config, or an empty string when no queue is safe."""
        queue = self.recommended()
        if queue is None:
            return ""
        return f'use_direct_io = true\n\n[plugin.posix]\nactive = true\nuse_{queue} = "true"\n'


def run_matrix(
    python: Path,
    folder: Path,
    *,
    cases: list[str] | None = None,
    queues: tuple[str, ...] = QUEUES,
    timeout: float = 60.0,
    pythonpath: str | None = None,
    progress: Callable[[Row], None] = lambda row: None,
) -> Matrix:
    """Run `cases` on `queues` with the NIXL that `python` imports, on files below `folder`.

    Raises Refusal `nixl-case` for an unknown case or queue; `nixl-unusable` when that Python has no NIXL that runs to
    the end.
    """
    cases = list(CASES) if cases is None else cases
    for kind, given, known in (("case", cases, CASES), ("queue", queues, QUEUES)):
        for name in given:
            if name not in known:
                raise Refusal("nixl-case", f"no {kind} is called {name!r}{there_are(name, known)}")
    env = {**os.environ, "NIXL_LOG_LEVEL": "FATAL"}
    if pythonpath is not None:
        env["PYTHONPATH"] = pythonpath
    script = Path(__file__).with_name("nixl_cases.py")
    version, rows = "", []
    with tempfile.TemporaryDirectory(dir=folder, prefix="nixl-check-") as scratch, tempfile.TemporaryFile() as errors:
        command = [str(python), str(script), scratch, ",".join(queues), ",".join(cases), str(timeout)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        try:
            for line in process.stdout or ():
                if not line.startswith("{"):
                    continue  # NIXL's own log
                data = json.loads(line)
                if "version" in data:
                    version = data["version"]
                    continue
                rows.append(Row(**data))
                progress(rows[-1])
        finally:
            process.kill()
            process.wait()
        if not version:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()
            why = f"has no usable NIXL: {last[-1] if last else 'it said nothing'}"
            raise Refusal("nixl-unusable", why, path=python, fix="--python build/runtime/bin/python")
    expected = len(cases) * len(queues)
    if len(rows) != expected:
        raise Refusal("nixl-unusable", f"ended early: {len(rows)} of {expected} rows", path=python)
    return Matrix(version=version, rows=rows)
