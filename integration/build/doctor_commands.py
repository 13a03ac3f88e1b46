"""`sm120 doctor`: this machine and the installed runtime, as tables."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console, working

console = make_console()


def doctor_command(json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Say what this machine is, what the runtime contains, and what is missing for SM120. Exit 1 on drift."""
    from sm120.integration.build.doctor import diagnose, exit_code

    with working("hashing the files of the installed runtime"):
        found = diagnose(find_checkout())
    if json:
        typer.echo(found.as_json())
        raise typer.Exit(exit_code(found))
    for title, rows in (("machine", found.machine), ("runtime", found.runtime)):
        table = Table("", "", title=title, show_header=False, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if found.patches:
        table = Table("project", "patch or overlay file", "in the installed runtime", title_justify="left")
        for state in found.patches:
            table.add_row(*state)
        console.print(table)
    for line in found.drift:
        console.print(f"drift: {line}", style="red", markup=False)
    for line in found.missing:
        console.print(f"missing for SM120: {line}", markup=False)
    raise typer.Exit(exit_code(found))
