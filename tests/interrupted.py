"""Work that is killed, or runs out of disk, before its n-th change of a file; told by the interpreter's audit events."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# What changes a file system, and of that what needs room.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink"}
NEED_ROOM = {"os.mkdir", "os.symlink"}

DONE, REFUSED, KILLED = 0, 7, 9


def interrupted(work: Callable[[], object], at: int, *, full: bool = False) -> int:
    """Run `work` in a child that ends, nothing cleaned up, before its change number `at` (from 0), or finds no room from
    there on; returns KILLED, DONE where it came to its end, or REFUSED where it raised."""
    child = os.fork()
    if child == 0:
        code = REFUSED
        try:
            sys.addaudithook(_Clock(at, full))
            work()
            code = DONE
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class _Clock:
    def __init__(self, left: int, full: bool) -> None:
        self.left, self.full = left, full

    def __call__(self, event: str, arguments: tuple) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & WRITES)
        if not writes and event not in (NEED_ROOM if self.full else CHANGES):
            return
        self.left -= 1
        if self.left >= 0:
            return
        if not self.full:
            os._exit(KILLED)
        raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, hidden ones included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
