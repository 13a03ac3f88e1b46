"""What a server is started with: its arguments as a command line, and a port that is free."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

Argument = str | int | float | bool | None | Sequence[str | int | float]


def command_line(arguments: Mapping[str, Argument]) -> list[str]:
    """Spell options as a command line: {"page_size": 16, "x": True, "y": None} gives --page-size 16 --x."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        words.extend([str(value)] if isinstance(value, str | int | float) else map(str, value))
    return words


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
