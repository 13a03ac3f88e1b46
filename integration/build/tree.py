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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.apply import apply_patch
from sm120.integration.series.overlay import OverlayFile, place_overlay
from sm120.integration.series.patch_file import Patch
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
            if "No space left" in result.stderr:
                raise OSError(errno.ENOSPC, reason)
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


def apply_in_place(folder: Path, series: Series, overlay: list[OverlayFile]) -> None:
    """Patch a user's own tree: everything is tried on copies of the touched files first.

    Raises:
        Refusal: whatever a patch or the overlay is refused for; `folder` is then untouched.
    """
    if not folder.is_dir():
        raise Refusal("tree-missing", "no such folder", path=folder)
    with tempfile.TemporaryDirectory(prefix="sm120-apply-") as name:
        trial = Path(name)
        copy_touched(folder, series.patches, trial)
        for file in overlay:  # so that one which is there already is refused
            if (folder / file.target).exists():
                (trial / file.target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / file.target, trial / file.target)
        apply_series(trial, series, overlay)
        for path in [path for path in trial.rglob("*") if path.is_file()]:
            target = folder / path.relative_to(trial)
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(f".{target.name}.tmp-apply")
            shutil.copy(path, aside)
            aside.replace(target)
        for gone in {touched for patch in series.patches for touched in patch.touched}:
            if not (trial / gone).exists():
                (folder / gone).unlink(missing_ok=True)


def apply_series(tree: Path, series: Series, overlay: list[OverlayFile]) -> None:
    """Place the overlay in `tree` and apply every patch; the tree is spoiled when this is refused."""
    place_overlay(tree, overlay)
    for patch in series.patches:
        apply_patch(tree, patch)


def copy_touched(
    pristine: Path, patches: Iterable[Patch], folder: Path, place: Callable[[str], str] = lambda target: target
) -> None:
    """Copy only the files that `patches` touch from `pristine` to `folder`, each to where `place` says."""
    folder.mkdir(parents=True, exist_ok=True)
    for target in sorted({target for patch in patches for target in patch.touched}):
        if (pristine / target).is_file():
            path = folder / place(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pristine / target, path)


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
        if error.errno == errno.ENOSPC or "No space left" in str(error):
            raise Refusal("disk-full", f"no space left while building {destination.name}", path=destination) from None
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
