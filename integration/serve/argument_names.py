"""The pinned server's argument names, so that a misspelled one is refused before anything starts."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

# One name a line, without dashes; a test in the runtime holds it to the parser of the installed server.
FILE = Path(__file__).with_name("server_arguments.txt")


@cache
def argument_names() -> frozenset[str]:
    """Every long option that the pinned `sglang.launch_server` takes."""
    return frozenset(FILE.read_text().split())


def unknown_argument(name: str) -> str | None:
    """Why `name` is no argument of the server, with the nearest that is one; None when it is."""
    names = argument_names()
    if name in names:
        return None
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"{name!r} is no argument of the pinned server" + (f"; nearest: {near[0]}" if near else "")
