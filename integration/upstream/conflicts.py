"""Why a change does not merge into a release: upstream's own hunk at its place, or where the code went."""

from __future__ import annotations

import difflib
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from sm120.integration.upstream.hunks import distinctive, lines_of
from sm120.integration.upstream.ladder import Change
from sm120.integration.upstream.merge import merge_file

REACH = (1, 3)
"""How near, in lines, an edit of upstream's lies that a merge or a hunk's context dies of; the wider only if need be."""
MOVED_SHARE = 0.6
MOVED_LINES = 3
"""From this share and number of the lines that a change needs on, a file counts as the place that they went to."""

Edit = tuple[int, int, int, int]


def upstream_changes(
    change: Change, pinned: dict[str, bytes], release: dict[str, bytes], path: str, limit: int = 12
) -> list[str]:
    """Upstream's edits between the pin and the release that overlap those of the change which do not merge there."""
    if path not in release:
        return [f"{path}: upstream removed or renamed it"]
    if path not in pinned:
        return [f"{path}: upstream has this file now"]
    before, after = lines_of(change.before[path] or b""), lines_of(change.after[path] or b"")
    old, new = lines_of(pinned[path]), lines_of(release[path])
    stuck = [edit for edit in _edits(before, after) if not _merges(release[path], before, after, edit)]
    place = difflib.SequenceMatcher(None, old, before, autojunk=False).get_opcodes()
    theirs = [
        (_placed(place, i1, False), _placed(place, i2, True), (i1, i2, j1, j2)) for i1, i2, j1, j2 in _edits(old, new)
    ]
    for reach in REACH:
        overlapping = [
            edit
            for low, high, edit in theirs
            if any(low <= end + reach and start <= high + reach for start, end, _, _ in stuck or _edits(before, after))
        ]
        if overlapping:
            return [line for edit in overlapping for line in _shown(path, old, new, edit, limit)]
    return [f"{path}: no edit of upstream's is at its place; look at the whole file"]


def went_to(change: Change, path: str, pinned: Path, release: Path) -> str:
    """Where the code of `path` that the change needs is in the wheel `release`, one line; `pinned` has it at `path`.

    By content, and only by lines of code that can tell: every file has the same licence.
    """
    needed = _needed(change, path)
    if sum(needed.values()) < MOVED_LINES:
        return f"{path}: upstream removed it; too few lines tell where its code went"
    best: tuple[int, str] = (0, "")
    with zipfile.ZipFile(pinned) as before, zipfile.ZipFile(release) as after:
        had = set(before.namelist())
        for name in after.namelist():
            if PurePosixPath(name).suffix == PurePosixPath(path).suffix:
                here = (_lines(after.read(name)) & needed).total()
                # What was there before it moved is a twin of it, and not the place that it went to.
                if here > best[0] and (name not in had or (_lines(before.read(name)) & needed).total() < here):
                    best = here, name
    found, name = best
    if found < max(MOVED_LINES, MOVED_SHARE * needed.total()):
        return f"{path}: upstream removed it, and its code is in no other file"
    return f"{path}: its code is in {name} now ({found} of the {needed.total()} lines that the patch needs)"


def _needed(change: Change, path: str) -> Counter[str]:
    """The lines of code that the edits of the change stand on, or among."""
    before, after = lines_of(change.before[path] or b""), lines_of(change.after[path] or b"")
    near = {at for i1, i2, _, _ in _edits(before, after) for at in range(max(i1 - 3, 0), min(i2 + 3, len(before)))}
    return _lines(b"".join(before[at] for at in sorted(near)))


def _lines(data: bytes) -> Counter[str]:
    lines = (line.strip() for line in data.decode(errors="replace").splitlines())
    return Counter(line for line in lines if distinctive(line) and not line.startswith(("#", "//", "/*", "*", '"""')))


def _edits(old: list[bytes], new: list[bytes]) -> list[Edit]:
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in codes if tag != "equal"]


def _merges(release: bytes, before: list[bytes], after: list[bytes], edit: Edit) -> bool:
    """Whether this edit alone, without the others of the change, merges into the release."""
    i1, i2, j1, j2 = edit
    alone = b"".join([*before[:i1], *after[j1:j2], *before[i2:]])
    return merge_file(release, b"".join(before), alone)[1]


def _placed(place: Sequence[tuple[str, int, int, int, int]], line: int, end: bool) -> int:
    """Where `line` of the pinned file is in the file before the change, which earlier patches have changed."""
    found = 0
    for tag, i1, i2, j1, j2 in place:
        if i1 <= line <= i2:
            found = j1 + line - i1 if tag == "equal" else j2 if end else j1
            if not end:
                return found
    return found


def _shown(path: str, old: list[bytes], new: list[bytes], edit: Edit, limit: int) -> list[str]:
    i1, i2, j1, j2 = edit
    lines = [f"{path}: upstream's lines {i1 + 1}-{max(i2, i1 + 1)} became {j1 + 1}-{max(j2, j1 + 1)}"]
    for sign, some in (("-", old[i1:i2]), ("+", new[j1:j2])):
        lines += [f"    {sign} {line.decode(errors='replace').rstrip()}" for line in some[:limit]]
    return lines
