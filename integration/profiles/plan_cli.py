"""`sm120 plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sm120.integration.console import make_console
from sm120.integration.refusal import Refusal

from .capacity import GIB, budget_left, capacity, parse_bytes, read_config
from .profile import Profile, load_profile
from .published_tokens import PUBLISHED, reproduce

console = make_console()


def register(app: typer.Typer) -> None:
    """Add this command to the main command line."""
    app.command("plan")(plan_command)


def plan_command(
    profile: Annotated[str, typer.Argument(help="a profile's name")] = "flash-next",
    gpu_mem: Annotated[str, typer.Option(help="memory of the GPU, free before loading")] = "96GiB",
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
    fraction = static_fraction or float(wanted.argument("mem-fraction-static", 0.9))
    loaded = parse_bytes(weights) if weights else _weights(wanted)
    budget = budget_left(parse_bytes(gpu_mem), loaded, fraction, parse_bytes(other) if other else 0)
    found = capacity(wanted, budget, config)
    table = Table("pool", "GiB", "how", title=f"{wanted.name}: {budget / GIB:.2f} GiB for pools", title_justify="left")
    for pool in found.pools:
        table.add_row(pool.name, f"{pool.bytes / GIB:,.3f}", pool.formula)
    table.add_row("left over", f"{found.left / GIB:,.3f}", "less than one page, and rounding")
    console.print(table)
    slots = found.slots
    console.print(f"tokens: {found.tokens:,} at {found.bytes_per_token:,} B each")
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
    table = Table("profile", "from", "to, published", "to, planned", "off", "step off", "standing", title_justify="left",
                  title="counts reported by others; the first gives the budget, the second is predicted")  # fmt: skip
    for line in PUBLISHED:
        found = reproduce(line)
        table.add_row(
            line.profile, f"{line.before:,}", f"{line.after:,}", f"{found.predicted:,}", f"{found.off:+.2%}",
            f"{found.step_off:+.1%}", line.standing,
        )  # fmt: skip
    console.print(table)
