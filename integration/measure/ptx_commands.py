"""`sm120 ptx`: a kernel's device tests on the PTX that its compiler made for sm_120a, and what they executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.console import make_console, working
from sm120.integration.common.refusal import Refusal

# Tests that launch PTX themselves, beside those marked `gpu`, which run it because SM120_DEVICE says so.
OWN_TESTS = ("test_*as_ptx.py", "test_against_upstream.py")
console = make_console()


@dataclass
class Executed:
    """What all launches of one kernel executed."""

    launches: int = 0
    instructions: int = 0
    lanes: int = 0
    products: int = 0
    sectors: int = 0
    passes: int = 0
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def ptx_command(
    kernel: Annotated[str, typer.Argument(help="a folder below kernels/")],
    long: Annotated[bool, typer.Option("--long", help="with the tests of whole layers and long contexts")] = False,
) -> None:
    """Run KERNEL's device tests as PTX for sm_120a on this CPU; exit 1 where one fails."""
    checkout = find_checkout()
    names = sorted(path.parent.name for path in checkout.kernels.glob("[!_]*/tests") if own(path, "*.py"))
    if kernel not in names:
        raise Refusal("kernel-unknown", f"no kernel {kernel!r} with tests: {', '.join(names)}", path=checkout.kernels)
    with tempfile.TemporaryDirectory(prefix="sm120-ptx-") as folder, working(f"run {kernel}'s tests as PTX"):
        tally = Path(folder) / "launches.jsonl"
        said, failed = _run(checkout, kernel, long, tally)
        rows = read(tally)
    if failed and not rows:
        raise Refusal("ptx-untested", f"no test of {kernel} ran: {said}", fix="make build/dev/.tested")
    console.print(table(kernel, rows))
    console.print(said, markup=False)
    raise typer.Exit(int(failed))


def own(tests: Path, pattern: str) -> list[Path]:
    return sorted(tests.glob(pattern))


def _run(checkout: Checkout, kernel: str, long: bool, tally: Path) -> tuple[str, bool]:
    """pytest's last line, and whether a test failed. Device tests and those that launch PTX are two runs of one folder."""
    tests = checkout.kernels / kernel / "tests"
    files = [str(path) for pattern in OWN_TESTS for path in own(tests, pattern)]
    wanted = [[str(tests), "-m", "gpu" if long else "gpu and not long"]]
    if files:
        wanted.append([*files, "-m", "long or not long" if long else "not long"])
    environment = os.environ | {"SM120_DEVICE": "ptx", "SM120_PTX_LAUNCHES": str(tally)}
    said, failed = [], False
    for arguments in wanted:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=checkout.root, env=environment, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).strip().splitlines()
        said += [line for line in lines if line.startswith(("FAILED", "ERROR", "SKIPPED"))] + lines[-1:]
        failed |= done.returncode not in (0, 5)  # 5: the kernel has none of these tests
    return "\n".join(said), failed


def read(tally: Path) -> dict[str, Executed]:
    """What the executor wrote, a launch a line, summed by kernel."""
    rows: dict[str, Executed] = defaultdict(Executed)
    for line in tally.read_text().splitlines() if tally.is_file() else []:
        launch: dict[str, Any] = json.loads(line)
        row = rows[launch["kernel"]]
        row.launches += 1
        row.lanes += launch["lanes"]
        row.sectors += launch["global_sectors"]
        row.passes += launch["shared_passes"]
        for kind, count in launch["instructions"].items():
            row.instructions += count
            row.kinds[kind] += count
            row.products += count if kind == "mma" else 0
    return dict(rows)


def table(kernel: str, rows: dict[str, Executed]) -> Table:
    """A line a kernel; shares are of its executed warp instructions."""
    made = Table(title=f"{kernel}: executed as PTX for sm_120a, on this CPU; counts, no times", title_justify="left")
    for name in ("kernel", "launches", "warp instructions", "lanes active", "mma", "global sectors", "shared passes"):
        made.add_column(name, justify="left" if name == "kernel" else "right")
    made.add_column("most of it")
    for name, row in sorted(rows.items()):
        most = sorted(row.kinds.items(), key=lambda item: -item[1])[:3]
        made.add_row(
            name,
            f"{row.launches:,}",
            f"{row.instructions:,}",
            f"{row.lanes / (32 * row.instructions):.0%}",
            f"{row.products:,}",
            f"{row.sectors:,}",
            f"{row.passes:,}",
            ", ".join(f"{kind} {count / row.instructions:.0%}" for kind, count in most),
        )
    return made
