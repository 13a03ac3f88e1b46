"""Give a series new files in one step, as far as any command can see.

The new files are written and checked aside; then one rename says that they count, and from there on they only have to be
moved into place. Whoever reads a series finishes first what a killed process left at that, or removes what it had not
got so far with: there is no state between the old series and the new one to be met.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sm120.integration.common.disk import refuse_if_full
from sm120.integration.common.refusal import Refusal

JOURNAL = "journal.json"


def switch(
    folder: Path, put: Mapping[Path, bytes], delete: Iterable[Path] = (), *, check: Callable[[Path], object]
) -> None:
    """Replace files of the series in `folder`, and of its surroundings, by `put`, and remove `delete`.

    `check` gets a copy of `folder` as it will be, and refuses what must not be. All paths are in the file system of
    `folder`. `put` is in the order in which the files go to their places, of which a reader from elsewhere may see a part.

    Raises:
        Refusal: what `check` raises, naming the files' places to be; `disk-full`. Nothing has changed then.
    """
    delete = list(delete)
    with _alone(folder):
        settle_locked(folder)
        aside = _staging(folder)
        try:
            aside.mkdir()
            moves = {}
            for number, (path, data) in enumerate(put.items()):
                path.parent.mkdir(parents=True, exist_ok=True)  # from here on nothing needs room
                moves[str(number)] = os.path.relpath(path, folder.parent)
                _write(aside / str(number), data)
            gone = [os.path.relpath(path, folder.parent) for path in delete]
            _check(folder, put, delete, aside / "check", check)
            _write(aside / JOURNAL, json.dumps({"put": moves, "delete": gone}, indent=1).encode())
        except BaseException as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, OSError):
                refuse_if_full(error, f"writing the series of {folder.name}", folder)
            raise
        aside.rename(_decided(folder))
        _sync(folder.parent)
        settle_locked(folder)


def settle(folder: Path) -> None:
    """Finish, or undo, what a killed `switch` of the series in `folder` left; whoever reads a series calls this first."""
    if not _decided(folder).exists() and not _staging(folder).exists():
        return
    with _alone(folder):
        settle_locked(folder)


def settle_locked(folder: Path) -> None:
    """`settle`, for the one that holds the lock: what lies aside is then nobody's."""
    shutil.rmtree(_staging(folder), ignore_errors=True)
    decided = _decided(folder)
    if not decided.is_dir():
        return
    if (decided / JOURNAL).is_file():  # it goes last
        journal = json.loads((decided / JOURNAL).read_text())
        for name, target in journal["put"].items():
            with suppress(FileNotFoundError):  # moved already
                (decided / name).replace(folder.parent / target)
        for target in journal["delete"]:
            (folder.parent / target).unlink(missing_ok=True)
        (decided / JOURNAL).unlink()
    shutil.rmtree(decided)


def _check(
    folder: Path, put: Mapping[Path, bytes], delete: list[Path], aside: Path, check: Callable[[Path], object]
) -> None:
    copy = aside / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("README.md"))
    for path, data in put.items():
        if path.parent == folder:
            (copy / path.name).write_bytes(data)
    for path in delete:
        if path.parent == folder:
            (copy / path.name).unlink(missing_ok=True)
    try:
        check(copy)
    except Refusal as refusal:
        inside = refusal.path is not None and Path(refusal.path).is_relative_to(copy)
        place = folder / Path(str(refusal.path)).relative_to(copy) if inside else refusal.path
        raise Refusal(refusal.code, refusal.what, path=place, line=refusal.line, fix=refusal.fix) from None
    shutil.rmtree(aside)


def _staging(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.switch-new")


def _decided(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.switch")


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Let a rename in `folder` survive a power cut, where the file system can."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`'s series; it goes with its process, however that ends."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
