"""Where commands print: tables as wide as the terminal, and whole where there is none (a file, a pipe, a CI log)."""

from __future__ import annotations

import os
import sys

from rich.console import Console

# Rich takes 80 columns for what is no terminal and cuts cells to fit; no table of ours is wider than this.
WIDTH_OF_FILES = 240


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output or standard error, without highlighting. COLUMNS sets the width everywhere."""
    stream = sys.stderr if stderr else sys.stdout
    narrow = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if narrow else WIDTH_OF_FILES)
