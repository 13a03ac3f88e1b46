"""`sm120 plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sm120.integration.console import make_console
from sm120.integration.refusal import Refusal

from .capacity import GIB, budget_left, capacity, number, parse_bytes, read_config
from .profile import Profile, load_profile
from .published_tokens import CARD, MIB, PAIRS, free_before_loading, ledger, missing_fraction, planned_here, predicted

console = make_console()


def register(app: typer.Typer) -> None:
    """Add this command to the main command line."""
    app.command("plan")(plan_command)


# Upstream keeps at least 10 GiB of a card of this size to itself unless it is told how much is static.
ASSUMED_FRACTION = 0.9


def plan_command(
    profile: Annotated[str, typer.Argument(help="a profile's name")] = "flash-next",
    gpu_mem: Annotated[str, typer.Option(help="memory of the GPU, free before loading")] = "96600MiB",
    weights: Annotated[
        str | None, typer.Option(help="bytes of all weights; else the size of paths.model, draft")
    ] = None,
    static_fraction: Annotated[
        float | None, typer.Option(help="--mem-fraction-static; the profile's, else 0.9")
    ] = None,
    other: Annotated[str | None, typer.Option(help="what else stays on the GPU")] = None,
    model: Annotated[Path | None, typer.Option(help="config.json, or the folder with it")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as for serve")] = None,
    published: Annotated[bool, typer.Option("--published", help="hold the planner against published counts")] = False,
) -> None:
    """Show what fits: pools, tokens, slots and the host tier."""
    if published:
        _published()
        return
    wanted = load_profile(profile, settings)
    config = read_config(model) if model else None
    said = static_fraction if static_fraction is not None else wanted.argument("mem-fraction-static")
    try:
        fraction = ASSUMED_FRACTION if said is None else float(said)
    except (ValueError, TypeError):
        raise Refusal("plan-settings", f"mem-fraction-static is {said!r}, must be a number in (0, 1]") from None
    context = number(wanted, "context-length", 0)
    loaded = parse_bytes(weights) if weights else _weights(wanted)
    budget = budget_left(parse_bytes(gpu_mem), loaded, fraction, parse_bytes(other) if other else 0)
    found = capacity(wanted, budget, config)
    table = Table("pool", "GiB", "how", title=f"{wanted.name}: {budget / GIB:.2f} GiB for pools", title_justify="left")
    for pool in found.pools:
        table.add_row(pool.name, f"{pool.bytes / GIB:,.3f}", pool.formula)
    table.add_row("left over", f"{found.left / GIB:,.3f}", "less than one page, and rounding")
    console.print(table)
    slots = found.slots
    if said is None:
        console.print(
            f"static fraction: {ASSUMED_FRACTION} is assumed; unset, the server makes its own. "
            "--static-fraction here and --set mem-fraction-static=… at the start make it one"
        )
    console.print(f"tokens: {found.tokens:,} at {found.bytes_per_token:,} B each")
    if found.tokens < context:
        console.print(f"a request of {context:,} tokens, the profile's context-length, does not fit")
    console.print(
        f"slots: {slots.slots}, {slots.reserved_per_request} reserved per request → {slots.cap} requests, "
        f"{slots.idle} left for prefixes"
    )
    if found.host_tokens:
        console.print(f"host tier: at most {found.host_tokens:,} tokens, less what recurrent states take of it")


def _weights(profile: Profile) -> int:
    paths = [path for path in (profile.paths.model, profile.paths.draft if profile.needs.draft else None) if path]
    size = sum(shard.stat().st_size for path in paths for shard in Path(path).glob("*.safetensors"))
    if not size:
        raise Refusal(
            "plan-weights", "no weights to take off the memory", fix="--weights 40GiB, or --set paths.model=FOLDER"
        )
    return size


def _published() -> None:
    free, (first, second) = free_before_loading(), PAIRS
    for pair in PAIRS:
        entries, start, end = ledger(pair), pair.before, pair.after
        table = Table("what", "bytes", "how", title_justify="left",
                      title=f"{pair.profile}: {start.tokens:,} to {end.tokens:,} tokens, reported by others")  # fmt: skip
        table.columns[1].justify = "right"
        for name, count, each in (
            ("tokens", entries.tokens, entries.bytes_per_token),
            ("state slots", entries.slots, entries.slot_bytes),
            ("draft rows", entries.draft_slots, entries.slot_bytes),
        ):
            table.add_row(name, f"{count * each:+,}", f"{count:+,} x {each:,}")
        table.add_row("sum", f"{entries.budget:+,}", f"fraction {start.fraction:g} to {end.fraction:g} of {free:,} B")
        rest = entries.budget - entries.brought(free)
        table.add_row("left unexplained", f"{rest:+,}", f"{rest / entries.bytes_per_token:+.1f} tokens")
        console.print(table)
        console.print(f"{pair.given}.")
        if pair is first:
            console.print(
                f"The one unknown is the memory free before loading: {free / MIB:,.0f} of the card's {CARD / MIB:,.0f} MiB "
                f"make the sum come out."
            )
            here = planned_here()
            console.print(
                f"In this runtime mode none frees its memory by itself: {here:,} tokens at an unchanged fraction, "
                f"{(here - end.tokens) / end.tokens:+.2%}.\n"
            )
    found = predicted(second)
    console.print(
        f"With the memory of the first pair the planner says {found:,} tokens, published {second.after.tokens:,} "
        f"({(found - second.after.tokens) / second.after.tokens:+.2%}). Nothing is left over at a fraction of "
        f"{missing_fraction():.5f}: that the first start had {second.before.fraction:g} is read from the bytes."
    )
