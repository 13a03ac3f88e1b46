"""The command that every kernel's bench.py is: static records without a device, times only when its tests pass.

python -m sm120.kernels.NAME.bench             # times, printed only when the kernel's tests pass in the same run
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

from sm120.kernels._lib import static_estimate
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
    of static records what a person reads.
    """
    if list(arguments) == ["--static"]:
        records = static_records()
        static_estimate.write_golden(folder / "static_roofline.json", records)
        if report is not None:
            print(report(records))
        return 0
    if arguments:
        print(f"bench: got {list(arguments)}, needs nothing or --static", file=sys.stderr)
        return 2
    reason = why_no_device()
    if reason is not None:
        print(f"bench: nothing to measure on: {reason}", file=sys.stderr)
        return 1
    if not _tests_pass(folder):
        print("bench: this kernel's tests fail; no number is printed", file=sys.stderr)
        return 1
    print(json.dumps(measure(), indent=1))
    return 0


def _tests_pass(folder: Path) -> bool:
    """Whether the kernel's tests, those on the device included, pass now."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={scratch}/tests", str(folder / "tests")]
        return subprocess.run(command, timeout=1800).returncode == 0
