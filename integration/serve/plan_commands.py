"""`sm120 plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sm120.integration.common.console import make_console
from sm120.integration.common.sizes import parse_bytes
from sm120.integration.serve.capacity import GIB, Capacity, capacity, number, read_config
from sm120.integration.serve.host_memory import host_need
from sm120.integration.serve.placement import Budget, budget, checkpoint_weights, told
from sm120.integration.serve.planner import SlotReport
from sm120.integration.serve.planner.resident import later
from sm120.integration.serve.planner.weights import Weights
from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.slot_trade import slot_trade

console = make_console()


def plan_command(
    profile: Annotated[str, typer.Argument(help="a profile's name")] = "flash-next",
    gpu_mem: Annotated[str, typer.Option(help="memory of the GPU, free before loading")] = "96600MiB",
    weights: Annotated[
        str | None, typer.Option(help="bytes of weights on the GPU; else read from the headers of paths.model, draft")
    ] = None,
    static_fraction: Annotated[float | None, typer.Option(help="--mem-fraction-static; else the profile's")] = None,
    other: Annotated[str | None, typer.Option(help="what else stays on the GPU")] = None,
    model: Annotated[Path | None, typer.Option(help="config.json, or the folder with it")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for serve")] = None,
) -> None:
    """Show what fits: pools, tokens, slots and the host tier. Exit 1 when not one request of full length does."""
    wanted = load_profile(profile, settings)
    config = read_config(model) if model else None
    context = number(wanted, "context-length", 0)
    loaded = None if weights else checkpoint_weights(wanted)
    on_gpu = parse_bytes(weights) if weights else _on_gpu(loaded)
    plan = budget(
        wanted, parse_bytes(gpu_mem), on_gpu, fraction=static_fraction, other=parse_bytes(other) if other else 0
    )
    found = capacity(wanted, plan.bytes, config)
    _show_budget(plan, loaded)
    _show_pools(wanted.name, found)
    console.print(f"tokens: {found.tokens:,} at {found.bytes_per_token:,} B each")
    if plan.short > 0:
        console.print(
            f"[bold]tight[/bold]: {plan.not_static / GIB:.2f} GiB are not static; {told(later())} GiB come after the pools"
        )
    _show_slots(found.slots)
    for line in slot_trade(wanted, plan.bytes, config):
        console.print(line)
    if found.host:
        _show_host(found, number(wanted, "mamba-max-states-per-path", 1))
    need = host_need(wanted, loaded, found)
    console.print(f"host memory: {need.bytes / 1e9:.1f} GB ({need.told()})")
    if found.tokens < context:
        console.print(
            f"[bold]DOES NOT FIT[/bold]: a request of {context:,} tokens, the profile's context-length, needs "
            f"{context - found.tokens:,} tokens more than the pool has"
        )
        raise typer.Exit(1)


def _on_gpu(loaded: Weights | None) -> int:
    assert loaded is not None
    return loaded.on_gpu


def _show_budget(plan: Budget, loaded: Weights | None) -> None:
    table = Table("GPU memory", "GiB", "from", title_justify="left")
    table.columns[1].justify = "right"
    table.add_row("free before loading", f"{plan.gpu_bytes / GIB:.2f}", "--gpu-mem")
    table.add_row("not static", f"-{plan.not_static / GIB:.2f}", f"mem-fraction-static {plan.fraction:g}")
    if loaded is None:
        table.add_row("weights", f"-{plan.weights / GIB:.2f}", "--weights")
    else:
        table.add_row("weights of the target", f"-{loaded.gpu / GIB:.2f}", "headers of its shards")
        if loaded.draft:
            table.add_row("weights of the draft", f"-{loaded.draft / GIB:.2f}", "headers of its shards")
    for part in plan.parts:
        table.add_row(part.name, f"-{part.bytes / GIB:.2f}", part.source)
    table.add_row("for pools", f"{plan.bytes / GIB:.2f}", "")
    console.print(table)
    if loaded and (loaded.host or loaded.disk or loaded.skipped):
        where = {"on the host": loaded.host, "on a disk": loaded.disk, "not loaded": loaded.skipped}
        console.print(
            "not on the GPU: " + ", ".join(f"{size / GIB:.2f} GiB {name}" for name, size in where.items() if size)
        )


def _show_pools(name: str, found: Capacity) -> None:
    table = Table("pool", "GiB", "how", title=f"{name}: {found.budget / GIB:.2f} GiB for pools", title_justify="left")
    for pool in found.pools:
        table.add_row(pool.name, f"{pool.bytes / GIB:,.3f}", pool.formula)
    table.add_row("left over", f"{found.left / GIB:,.3f}", "less than one page, and rounding")
    table.add_row("uncharged", f"{found.uncharged / GIB:,.3f}", "side states and padding: out of what is not static")
    console.print(table)


def _show_slots(slots: SlotReport) -> None:
    console.print(
        f"slots: {slots.slots}; each request takes {slots.reserved_per_request} to be admitted → {slots.cap} requests; "
        f"running they hold {slots.held_per_request} each, together {slots.held}; {slots.idle} are left for prefixes"
    )


def _show_host(found: Capacity, per_path: int) -> None:
    host = found.host
    assert host is not None
    draft = f"; the draft {host.draft_bytes / 1e9:.1f} GB on top" if host.draft_bytes else ""
    console.print(
        f"host tier: {host.tokens:,} tokens ({host.kv_bytes / 1e9:.1f} GB) and {host.states:,} states "
        f"({host.state_bytes / 1e9:.1f} GB){draft}"
        + (f"; without states it would be at most {found.host_tokens:,} tokens" if found.host_tokens else "")
    )
    shortest = host.tokens_per_state * per_path
    console.print(
        f"a prefix comes back only with a state: states, not tokens, limit restores where prefixes are shorter than "
        f"{shortest:,} tokens" + (f" ({per_path} states each)" if per_path > 1 else "")
    )
