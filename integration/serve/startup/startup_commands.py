"""`sm120 assert-startup`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.markup import escape
from rich.table import Table

from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.startup.startup_check import assert_startup, passed

console = make_console()


def assert_startup_command(
    profile: Annotated[str, typer.Argument(help="the profile that the server was started with")],
    log: Annotated[Path | None, typer.Option(help="the server's log")] = None,
    url: Annotated[str | None, typer.Option(help="the running server, for what it resolved")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="the same --set as at the start")] = None,
) -> None:
    """Show what was meant beside what the server said. Exit 1 unless every row was seen and is as meant."""
    if log is None and url is None:
        raise Refusal("startup-nothing", "neither --log nor --url is given", fix="name a log, a server, or both")
    text = ""
    if log is not None:
        try:
            text = log.read_text(errors="replace")
        except OSError as error:
            raise Refusal("startup-log", f"cannot be read: {error.strerror}", path=log) from None
    info = server_info(url) if url else None
    try:
        rows = assert_startup(load_profile(profile, settings), text, info)
    except ValueError as error:
        raise Refusal("profile-schema", str(error)) from None
    table = Table("", "expected", "found", "verdict", "read from", title=profile, title_justify="left")
    for row in rows:
        found = "" if row.found is None else row.found
        table.add_row(*map(escape, (row.name, row.expected, found, row.verdict, row.source)))
    console.print(table)
    raise typer.Exit(0 if passed(rows) else 1)


def server_info(url: str) -> dict[str, Any]:
    """What /server_info answers, with what its first scheduler says on top.

    Raises:
        Refusal: `startup-url` when there is no such answer.
    """
    try:
        answer = httpx.get(f"{url.rstrip('/')}/server_info", timeout=30, trust_env=False)
        answer.raise_for_status()
        info = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Refusal("startup-url", f"{url}/server_info: {error!r}") from None
    if not isinstance(info, dict):
        raise Refusal("startup-url", f"{url}/server_info: not an object")
    return info
