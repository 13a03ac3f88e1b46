"""`sm120 serve` and `sm120 profiles`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console
from sm120.integration.common.server_command import free_port
from sm120.integration.serve.launch import TELLING, launch, prepare
from sm120.integration.serve.preflight import Check, ready
from sm120.integration.serve.profile import load_profile, profile_names

console = make_console()
Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: a server argument, or paths., storage., …")]


def profiles_command() -> None:
    """List the profiles."""
    table = Table("profile", "device", "what")
    for name in profile_names():
        profile = load_profile(name)
        table.add_row(name, profile.capability, profile.summary)
    console.print(table)


def serve_command(
    profile: Annotated[str, typer.Argument(help="a profile's name, or the path of a TOML file")],
    settings: Set = None,
    show: Annotated[bool, typer.Option("--print", help="print command line and verdict, start nothing")] = False,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0 takes a free one")] = 30000,
) -> None:
    """Check this machine for PROFILE and become its server. Exit 1 when a check says no."""
    checkout = find_checkout()
    prepared = prepare(checkout, load_profile(profile, settings), host=host, port=port or free_port())
    if show:
        typer.echo(prepared.printed())
    else:
        table = Table("setting", "value", title=prepared.profile.summary, title_justify="left")
        for name in TELLING:
            if prepared.profile.argument(name) is not None:
                table.add_row(name, str(prepared.profile.argument(name)))
        console.print(table)
    console.print(preflight_table(prepared.checks))
    if not ready(prepared.checks):
        bad = [check.name for check in prepared.checks if check.ok is not True]
        console.print(f"verdict: not ready ({', '.join(bad)})")
        raise typer.Exit(1)
    console.print("verdict: ready")
    if not show:
        console.print(f"http://{host}:{prepared.port}")
        launch(checkout, prepared, console.print)


def preflight_table(checks: list[Check]) -> Table:
    """Name, verdict, found, needed, and what to do."""
    table = Table("check", "", "found", "needs", "fix", title="preflight", title_justify="left")
    for check in checks:
        word = {True: "ok", False: "no", None: "not known"}[check.ok]
        table.add_row(check.name, word, *map(escape, (check.found, check.need, check.fix)))
    return table
