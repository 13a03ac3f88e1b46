"""The table of a proof and its JSON tell the same."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from sm120.integration.prove.reference import Verdict
from sm120.integration.prove.summary import Summary
from sm120.integration.prove.table import print_table, write_json

from .proof_rows import one


def test_table_and_json_tell_the_same(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1 pinned_memory m\n2 pinned_memory m\n2 rotary_embedding n\nhalf")
    summary = Summary(tmp_path / "log", storage="NIXL POSIX, io_uring, O_DIRECT", start_seconds={"dense first": 16.04})
    summary.memory_bytes["dense first"] = 1_700_000_000
    rows = [
        one(cached={"device": 0, "host": 0, "storage": 0}, wanted="nowhere"),
        one(step="host hit", wanted="host", cached={"host": 192}, verdict=Verdict(False, 0, 7)),
    ]
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    print_table(rows, summary, console)
    text = console.export_text()
    for expected in (
        "NO, from token 7",
        "192",
        "FAILED: dense, host hit: tokens differ from token 7 on",
        "io_uring, O_DIRECT",
        "up in 16.0 s, 1.70 GB resident",
        "2 stand-ins",
        "pinned_memory, rotary_embedding",
    ):
        assert expected in text
    write_json(rows, summary, tmp_path / "rows.json")
    told = json.loads((tmp_path / "rows.json").read_text())
    assert told["ok"] is False and [row["ok"] for row in told["rows"]] == [True, False]
    assert told["stand_ins"] == ["pinned_memory", "rotary_embedding"]
    assert [path.name for path in tmp_path.glob(".*")] == []
