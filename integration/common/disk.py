"""A disk that is full, said by every tool in its own way, and how much is free on one that is not."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from sm120.integration.common.refusal import Refusal

# What strerror says, and with it git, pip, tar and Python, wherever messages are not translated.
NO_SPACE = "No space left on device"


def is_full(said: str | OSError) -> bool:
    """Whether an error, or what a tool said on its end, is that of a full disk."""
    return (isinstance(said, OSError) and said.errno == errno.ENOSPC) or NO_SPACE in str(said)


def refuse_if_full(said: str | OSError, doing: str, path: Path) -> None:
    """Refuse with `disk-full`, "no space left while" `doing`, where that is what `said` means."""
    if is_full(said):
        raise Refusal(
            "disk-full", f"no space left while {doing}", path=path, fix="free some, and run this again"
        ) from None


def free_bytes(path: Path) -> int:
    """Free space on the file system of `path`, or of its nearest parent that is there."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
