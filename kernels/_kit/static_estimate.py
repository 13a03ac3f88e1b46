"""Budgets in kernel.toml and the golden `static_roofline.json`: evidence about machine code, never about time.

A kernel module states, a compiled variant at a time, what it may use. `check_budget` refuses a build that uses more;
`check_golden` one that changed without anybody saying so. Every record is labelled a static estimate.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from sm120.kernels._kit.compilers import Cubin
from sm120.kernels._kit.machine_code import Instruction, KernelCode, histogram
from sm120.kernels._kit.occupancy import SHARED_BYTES_PER_BLOCK, occupancy

LABEL = "static estimate: read from machine code, no GPU was used"
DRAM_BYTES_PER_SECOND = 1.792e12
INSTRUCTION_TOLERANCE = 0.05  # of the hot loop; registers and bytes are exact


def budgets(kernel_toml: Path) -> list[dict[str, Any]]:
    """The [[budget]] rows of a kernel.toml. Raises ValueError, naming the file, when one lacks a mandatory key."""
    rows = tomllib.loads(kernel_toml.read_text()).get("budget", [])
    for row in rows:
        missing = {"kernel", "threads", "registers", "spill_bytes", "shared_bytes"} - row.keys()
        if missing:
            raise ValueError(f"{kernel_toml}: budget {row.get('kernel', '?')!r} lacks {sorted(missing)}")
    return rows


def check_budget(budget: dict[str, Any], code: KernelCode, dynamic_shared_bytes: int = 0) -> None:
    """Raise AssertionError naming the kernel and the resource when `code` uses more than its budget."""
    shared = code.shared_bytes + dynamic_shared_bytes
    used = {
        "registers": code.registers,
        "spill_bytes": code.local_bytes + code.stack_bytes,
        "shared_bytes": shared,
    }
    for resource, amount in used.items():
        assert amount <= budget[resource], f"{code.name}: {resource} {amount}, budget {budget[resource]}"
    assert budget["spill_bytes"] > 0 or code.spills == 0, f"{code.name}: {code.spills} local memory instructions"
    assert shared <= SHARED_BYTES_PER_BLOCK, f"{code.name}: {shared} bytes of shared memory do not fit in a block"
    narrowest = budget.get("narrowest_global_access", 0)
    for access, count in code.widths.items():
        width = int(access.rsplit(".", 1)[1])
        assert width >= narrowest, f"{code.name}: {count} {access}-byte global accesses, budget at least {narrowest}"


def record(code: KernelCode, cubin: Cubin, threads: int, bytes_moved: int) -> dict[str, Any]:
    """One object of static_roofline.json.

    bytes_moved   global memory traffic of one launch at the shape that the caller names beside the record, counted
                  once; divided by the DRAM rate it is the least time that launch can take.
    """
    resident = occupancy(code.registers, threads, code.shared_bytes + cubin.dynamic_shared_bytes)
    hot: list[Instruction] = max(code.loops, key=len, default=[])
    return {
        "evidence": LABEL,
        "kernel": code.name,
        "toolchain": cubin.toolchain,
        "arch": cubin.arch,
        "registers": code.registers,
        "spills": code.spills,
        "shared_bytes": code.shared_bytes + cubin.dynamic_shared_bytes,
        "occupancy": {"blocks_per_sm": resident.blocks, "warps_per_sm": resident.warps, "limit": resident.limit},
        "instructions": len(code.instructions),
        "global_accesses": code.widths,
        "hot_loop": {"instructions": len(hot), "by_class": histogram(hot)},
        "bytes_moved": bytes_moved,
        "dram_seconds_at_least": bytes_moved / DRAM_BYTES_PER_SECOND,
    }


class OtherToolchain(Exception):
    """The committed file was written with another compiler, so its numbers say nothing about what this one makes."""


def check_golden(golden: Path, records: list[dict[str, Any]]) -> None:
    """Compare with the committed file; raises AssertionError naming what changed and how to accept it.

    Raises OtherToolchain where only the kernels' names could be compared; a test skips with its message.
    """
    committed = {row["kernel"]: row for row in json.loads(golden.read_text())["kernels"]}
    fresh = {row["kernel"]: row for row in records}
    accept = f"if meant, write it again: python -m sm120.kernels.{golden.parent.name}.bench --static"
    assert committed.keys() == fresh.keys(), f"{golden.name}: has {sorted(committed)}, built {sorted(fresh)}; {accept}"
    for name, row in fresh.items():
        old = committed[name]
        if old["toolchain"] != row["toolchain"]:
            raise OtherToolchain(f"{golden.name} was written with {old['toolchain']}, this is {row['toolchain']}")
        for key in ("registers", "spills", "shared_bytes", "global_accesses", "bytes_moved"):
            assert row[key] == old[key], f"{name}: {key} is {row[key]}, {golden.name} has {old[key]}; {accept}"
        for key, now, then in (
            ("instructions", row["instructions"], old["instructions"]),
            ("hot_loop", row["hot_loop"]["instructions"], old["hot_loop"]["instructions"]),
        ):
            assert abs(now - then) <= INSTRUCTION_TOLERANCE * then, f"{name}: {key} {now}, was {then}; {accept}"


def write_golden(golden: Path, records: list[dict[str, Any]]) -> None:
    """Write static_roofline.json from fresh records."""
    golden.write_text(json.dumps({"schema": 1, "evidence": LABEL, "kernels": records}, indent=1) + "\n")
