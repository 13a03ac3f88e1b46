"""Where commands print: tables as wide as the terminal, and whole where there is none (a file, a pipe, a CI log)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

# Rich takes 80 columns for what is no terminal and cuts cells to fit; no table of ours is wider than this.
WIDTH_OF_FILES = 240

# Whether `--json` was asked for: see print_json.
_state = {"json": False}


def print_json(asked: bool = True) -> None:
    """From now on a table on standard output is one line of JSON, and what is no table goes to standard error."""
    _state["json"] = asked


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output or standard error, without highlighting. COLUMNS sets the width everywhere."""
    stream = sys.stderr if stderr else sys.stdout
    narrow = stream.isatty() or "COLUMNS" in os.environ
    return UncutConsole(stderr=stderr, highlight=False, width=None if narrow else WIDTH_OF_FILES)


class UncutConsole(Console):
    """Prints tables of which no word is cut: other commands want the names in them, as they are."""

    def print(self, *objects: Any, **options: Any) -> None:
        if _state["json"] and not self.stderr:
            for table in objects:
                if isinstance(table, Table):
                    self.file.write(json.dumps(as_data(table), ensure_ascii=False) + "\n")
            objects = tuple(thing for thing in objects if not isinstance(thing, Table))
            if objects:
                make_console(stderr=True).print(*objects, **options)
            return
        for table in objects:
            if isinstance(table, Table) and table.columns:
                uncut(table, self.width)
        super().print(*objects, **options)


def as_data(table: Table) -> dict[str, Any]:
    """Title and rows of a table, each row by the names of its columns; one without a name is called `what`."""
    names = [plain(column.header) or "what" for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    return {
        "title": plain(table.title),
        "rows": [dict(zip(names, map(plain, row), strict=True)) for row in rows],
    }


def plain(cell: Any) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell or "")


def uncut(table: Table, width: int) -> None:
    """The first column, which says what a row is about, in one line where it takes less than half of `width`."""
    for column in table.columns:
        if column.overflow == "ellipsis":
            column.overflow = "fold"
    key = table.columns[0]
    lines = [line for cell in key.cells for line in str(cell).splitlines()]
    longest = max((cell_len(line) for line in lines), default=0)
    if longest <= width // 2:
        key.no_wrap, key.min_width = True, max(longest, key.min_width or 0)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on standard error that `what` goes on: a line with its time on a terminal, gone at the end; one line elsewhere."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what} …", markup=False, soft_wrap=True)
        yield
        return
    with Status(_Clock(what), console=console):
        yield


class _Clock:
    """What goes on and since how many seconds: drawn anew whenever the spinner moves."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.started = time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"{self.what} {time.monotonic() - self.started:.0f} s")
