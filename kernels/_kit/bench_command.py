"""The command that every kernel's bench.py is: static records without a device, times only when its tests pass.

python -m sm120.kernels.NAME.bench             # a table of times, only when the kernel's tests pass in the same run
python -m sm120.kernels.NAME.bench --json      # the same as JSON
python -m sm120.kernels.NAME.bench --static    # writes static_roofline.json from a fresh sm_120a build
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sm120.kernels._kit import static_estimate
from sm120.kernels._lib.device import why_no_device

Records = list[dict[str, Any]]


def run(
    arguments: Sequence[str],
    folder: Path,
    *,
    static_records: Callable[[], Records],
    measure: Callable[[], Records],
    report: Callable[[Records], str] | None = None,
) -> int:
    """Do what `arguments` ask of the kernel in `folder`; returns the exit status.

    0 after records or times, 1 without a device or with failing tests, 2 for arguments that mean nothing. `report` makes
    of static records what a person reads; `table` does of times.
    """
    if list(arguments) == ["--static"]:
        records = static_records()
        static_estimate.write_golden(folder / "static_roofline.json", records)
        if report is not None:
            print(report(records))
        return 0
    if list(arguments) not in ([], ["--json"]):
        print(f"bench: got {list(arguments)}, needs nothing, --json or --static", file=sys.stderr)
        return 2
    reason = why_no_device()
    if reason is not None:
        print(f"bench: nothing to measure on: {reason}", file=sys.stderr)
        return 1
    if not _tests_pass(folder):
        print("bench: this kernel's tests fail; no number is printed", file=sys.stderr)
        return 1
    rows = measure()
    print(json.dumps(rows, indent=1) if arguments else table(rows))
    return 0


def table(rows: Records) -> str:
    """The rows under their names, in columns; what is the same in all of several rows stands once, above them."""
    names = list(rows[0]) if rows else []
    shared = [name for name in names if len(rows) > 1 and all(row[name] == rows[0][name] for row in rows)]
    columns = [name for name in names if name not in shared]
    lines = [columns, *([_cell(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    texts = [f"{name}: {_cell(rows[0][name])}" for name in shared]
    texts += ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(texts)


def _cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _tests_pass(folder: Path) -> bool:
    """Whether the kernel's tests, those on the device included, pass now."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={scratch}/tests", str(folder / "tests")]
        return subprocess.run(command, timeout=1800).returncode == 0
