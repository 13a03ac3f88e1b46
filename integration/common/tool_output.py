"""What a program of this machine says of itself."""

from __future__ import annotations

import subprocess


def tool_lines(command: list[str]) -> list[str]:
    """The lines that `command` prints, stripped; none when it is not installed or does not answer within 20 s."""
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in output.strip().splitlines()]
