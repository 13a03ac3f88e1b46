"""Print rows as one table, and write them as JSON."""

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sm120.integration.prove.rows import TIERS, Row
from sm120.integration.prove.summary import Summary


def print_table(rows: Sequence[Row], summary: Summary, console: Console) -> None:
    """One line a row, then what it cost, then every problem in words."""
    table = Table(title="Proof: greedy tokens of the served runtime against transformers on the same weights")
    for heading in ("model", "request", "tokens equal", *TIERS, "accept length", "seconds"):
        table.add_column(heading, justify="left" if heading in ("model", "request", "tokens equal") else "right")
    for one in rows:
        table.add_row(
            one.group,
            one.step,
            str(one.verdict),
            *(str(one.cached.get(tier, 0)) for tier in TIERS),
            "" if one.accept_length is None else f"{one.accept_length:.2f}",
            f"{one.seconds:.1f}",
            style=None if one.ok else "red",
        )
    console.print(table)
    if summary.storage:
        console.print(f"Storage: {summary.storage}", soft_wrap=True)
    for name, seconds in summary.start_seconds.items():
        memory = summary.memory_bytes.get(name)
        console.print(f"Server {name}: up in {seconds:.1f} s" + (f", {memory / 1e9:.2f} GB resident" if memory else ""))
    console.print(
        f"Passed through {len(summary.stand_ins())} stand-ins for an absent GPU (integration/prove/cpu_layer/README.md says what "
        f"each leaves unproven): {', '.join(summary.stand_ins())}",
        soft_wrap=True,
    )
    for one in rows:
        for problem in one.problems:
            console.print(f"FAILED: {one.group}, {one.step}: {problem}", style="red", soft_wrap=True)


def write_json(rows: Sequence[Row], summary: Summary, file: Path) -> None:
    """Write the same as the table; aside first, so that a reader never sees half a file."""
    told = {
        "rows": [{**asdict(one), "ok": one.ok} for one in rows],
        "ok": all(one.ok for one in rows),
        "storage": summary.storage,
        "start_seconds": summary.start_seconds,
        "memory_bytes": summary.memory_bytes,
        "stand_ins": summary.stand_ins(),
    }
    aside = file.with_name(f".{file.name}.part")
    aside.write_text(json_format.dumps(told, indent=2) + "\n")
    aside.replace(file)
