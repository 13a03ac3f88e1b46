"""Trees: a pristine one from a verified artifact, and a patched one from pristine + overlay + series.

Both are built aside and renamed into place, so that a tree that exists is complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sm120.integration.common.disk import refuse_if_full
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.apply import apply_series
from sm120.integration.series.overlay import OverlayFile
from sm120.integration.series.pin import Artifact
from sm120.integration.series.series import Series


def release_folder(trees: Path, project: str, artifact: Artifact) -> Path:
    """Where below `trees` the unpacked `artifact` is.

    Its hash is part of the name: wheels of one version for other Pythons or machines hold other files.
    """
    version = artifact.file.split("-")[1]
    return trees / f"{project}-{version}-{artifact.sha256[:12]}"


def pristine_tree(artifact: Path, pinned: Artifact, destination: Path) -> Path:
    """Unpack a wheel, checking every member against its RECORD.

    Raises:
        Refusal: `artifact-corrupt`, `disk-full`.
    """

    def unpack(aside: Path) -> None:
        result = subprocess.run(
            [sys.executable, "-m", "wheel", "unpack", "--dest", str(aside), str(artifact)],
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            refuse_if_full(result.stderr, f"unpacking {pinned.file}", destination)
            raise Refusal("artifact-corrupt", f"{pinned.file} does not unpack: {reason}", path=artifact)
        unpacked = aside / "-".join(pinned.file.split("-")[:2])
        for member in unpacked.iterdir():
            member.rename(aside / member.name)
        unpacked.rmdir()

    return build_aside(destination, unpack)


def patched_tree(pristine: Path, series: Series, overlay: list[OverlayFile], destination: Path) -> Path:
    """Copy `pristine`, place the overlay, apply the series.

    Raises:
        Refusal: whatever the overlay or a patch is refused for; `disk-full`. `destination` is then untouched.
    """

    def make(aside: Path) -> None:
        shutil.copytree(pristine, aside, dirs_exist_ok=True, symlinks=True)
        apply_series(aside, series, overlay)

    return build_aside(destination, make)


def build_aside(destination: Path, make: Callable[[Path], None]) -> Path:
    """Run `make` on an empty folder beside `destination` and rename it into place; nothing half-made stays.

    Of several processes that do this at once each has a folder of its own; the first to be ready gives its to all.

    Raises:
        Refusal: `disk-full`; and whatever `make` raises.
    """
    if destination.exists():
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _owned_aside(destination) as aside:
            make(aside)
            aside.chmod(0o755)
            try:
                os.rename(aside, destination)
            except OSError as error:
                # Another was faster, and what has that name is complete.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not destination.is_dir():
                    raise
    except OSError as error:
        refuse_if_full(error, f"building {destination.name}", destination)
        raise
    return destination


@contextmanager
def _owned_aside(destination: Path) -> Iterator[Path]:
    """A new folder beside `destination`, locked: `sweep_unfinished` leaves it alone for as long as its owner lives."""
    while True:
        aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.tmp-", dir=destination.parent))
        try:
            owned = os.open(aside, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # swept before it was locked, here or below
            continue
        with suppress(OSError):  # a file system without such locks; nothing is swept there
            fcntl.flock(owned, fcntl.LOCK_EX)
        if aside.exists():
            break
        os.close(owned)
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(owned)


def sweep_unfinished(folder: Path) -> None:
    """Remove what an interrupted build left aside, and nothing that a living one still fills."""
    for entry in folder.glob(".*.tmp-*") if folder.is_dir() else ():
        try:
            left = os.open(entry, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with its process, however that ends
            shutil.rmtree(entry, ignore_errors=True)
        except OSError:  # its owner lives, or the file system cannot tell
            continue
        finally:
            os.close(left)
