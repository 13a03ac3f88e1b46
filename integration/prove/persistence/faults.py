"""Fault injection on stored pages, counted: what a damaged disk costs, and that wrong state is never served."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel
from rich.table import Table

from sm120.integration.build.installed_runtime import Runtime, ScriptFailed
from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace import namespace_store as store
from sm120.integration.serve.namespace.namespace_identity import SCHEMA

# Same size, other content: only a checksum can tell.
NEED_CHECKSUM = ("bit-flip", "swapped-files")


class FaultRow(BaseModel):
    """One fault with or without page checksums: how many tries ended how (see fault_cases.py)."""

    fault: str
    checksum: bool
    tries: int
    full: int = 0
    part: int = 0
    miss: int = 0
    wrong: int = 0
    error: int = 0


def run_faults(
    runtime: Runtime,
    folder: Path,
    *,
    long: bool = False,
    timeout: float = 1800,
    progress: Callable[[FaultRow], None] = lambda row: None,
) -> list[FaultRow]:
    """Run every fault on files below `folder`.

    Raises Refusal `fault-unstaged` when a fault could not be staged; ScriptFailed when the script died or took longer
    than `timeout` seconds.
    """
    script = Path(__file__).with_name("fault_cases.py")
    rows = []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="faults-") as scratch, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["timeout", str(timeout), str(runtime.python), str(script), scratch, "long" if long else "short"],
            env={**runtime.environment(), "OMP_NUM_THREADS": "1", "NIXL_LOG_LEVEL": "FATAL"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        for line in process.stdout or ():
            if not line.startswith("{"):
                continue  # a library's log
            data = json.loads(line)
            if "failed" in data:
                process.kill()
                raise Refusal("fault-unstaged", f"{data['fault']}: {data['failed']}")
            rows.append(FaultRow(**data))
            progress(rows[-1])
        if process.wait():
            errors.seek(0, os.SEEK_END)
            errors.seek(max(0, errors.tell() - 3000))
            last = errors.read().decode(errors="replace")
            raise ScriptFailed(script, f"ended with {process.returncode}", last)
        rows.append(manifest_faults(Path(scratch)))
        progress(rows[-1])
    return rows


def manifest_faults(folder: Path) -> FaultRow:
    """Open a namespace whose manifest is damaged, missing or foreign; a refusal counts as a cold prefill."""
    mine, other = ({"schema": SCHEMA, "serving": {"page_size": size}} for size in (64, 32))
    manifest = store.open_namespace(folder, "fault", mine).folder / store.MANIFEST
    good = manifest.read_bytes()
    foreign = (store.open_namespace(folder, "fault", other).folder / store.MANIFEST).read_bytes()
    damages = [foreign, b"", good.replace(b"64", b"65"), None, *(good[:cut] for cut in range(0, len(good) - 2, 16))]
    damages += [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(0, len(good) - 1, 7)]
    row = FaultRow(fault="foreign-or-damaged-manifest", checksum=False, tries=0)
    for damage in damages:
        manifest.unlink(missing_ok=True)
        if damage is not None:
            manifest.write_bytes(damage)
        row.tries += 1
        try:
            opened = store.open_namespace(folder, "fault", mine)
        except Refusal:
            row.miss += 1
        else:
            # Damage to white space leaves the identity what it was.
            row.full += opened.identity == mine
            row.wrong += opened.identity != mine
    return row


def failures(rows: list[FaultRow]) -> list[str]:
    """What must not happen: wrong state that the setting can tell from right, or an exception out of the backend."""
    found = []
    for row in rows:
        where = f"{row.fault}, checksums {'on' if row.checksum else 'off'}"
        if row.wrong and (row.checksum or row.fault not in NEED_CHECKSUM):
            found.append(f"{where}: wrong state restored in {row.wrong} of {row.tries} tries")
        if row.error:
            found.append(f"{where}: an exception in {row.error} of {row.tries} tries")
        if not row.tries:
            found.append(f"{where}: nothing was tried")
    return found


def table(rows: list[FaultRow]) -> Table:
    made = Table(title="what each fault costs")
    for column in ("fault", "checksums"):
        made.add_column(column)
    for column in ("tries", "all restored", "shorter prefix", "cold prefill", "wrong", "exception"):
        made.add_column(column, justify="right")
    for row in rows:
        counts = (row.tries, row.full, row.part, row.miss, row.wrong, row.error)
        made.add_row(row.fault, "on" if row.checksum else "off", *map(str, counts))
    return made
