"""What became of each hunk of a change on one release: a merge of a part must not be taken for the whole.

Each hunk is undone alone, by merging. That settles it where the surroundings are as they were: undoing changes the
file (the hunk is there) or changes nothing (the code is as it was before the hunk). Where the merge conflicts, its
lines are looked for at the place that the lines around them have now.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import unidiff

from sm120.integration.upstream.merge import merge_file

SIMILAR = 0.6
"""From this ratio on (difflib's), a line at the right place counts as the same line in other words."""

PARTIAL_SHARE = 0.5
PARTIAL_LINES = 3
"""A hunk counts as half there from this share and number of its added lines on."""

Side = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Hunk:
    """One hunk of a diff and its state on a release.

    `there`: as it is carried. `reworded`: each of its lines, or one like it, is at its place. `partial`: some are.
    `missing`: the code is as it was before. `unclear`: nothing of the above can be seen.
    """

    path: str
    number: int
    state: str
    added: int
    """Added lines that can tell: neither very short nor in the file before."""
    found: int
    """Of these, how many are at their place."""

    @property
    def name(self) -> str:
        return f"{self.path}:{self.number}"


def hunk_states(diff: str, before: Side, after: Side, release: Mapping[str, bytes]) -> tuple[Hunk, ...]:
    """The state of every hunk of `diff`, which leads from `before` to `after`, in the files of `release`."""
    found: list[Hunk] = []
    for file in unidiff.PatchSet(diff):
        path = file.path
        old, new, now = before.get(path), after.get(path), release.get(path)
        if old is None or new is None or now is None:
            found += _whole_file(path, max(len(file), 1), old, new, now)
            continue
        place = _Placement(old, new, now)
        for number, hunk in enumerate(file, 1):
            found.append(_one_hunk(path, number, place, hunk))
    return tuple(found)


def without_hunk(before: bytes, after: bytes, hunk: unidiff.Hunk) -> bytes:
    """The file `after` a diff, with one of its hunks undone."""
    old, new = lines_of(before), lines_of(after)
    source, target = _ranges(hunk)
    return b"".join([*new[: target[0]], *old[slice(*source)], *new[target[1] :]])


def distinctive(line: str) -> bool:
    """Whether a line says enough to be recognised."""
    return len(re.sub(r"\W", "", line)) > 3


def lines_of(data: bytes) -> list[bytes]:
    """Lines with their ends, split where git splits them and nowhere else."""
    return re.findall(rb"[^\n]*\n|[^\n]+\Z", data)


def _ranges(hunk: unidiff.Hunk) -> tuple[tuple[int, int], tuple[int, int]]:
    return _span(hunk.source_start, hunk.source_length), _span(hunk.target_start, hunk.target_length)


def _span(start: int, length: int) -> tuple[int, int]:
    # `@@ -0,0` and `@@ -5,0`: an empty range stands behind the line that it names.
    return (start, start) if length == 0 else (start - 1, start - 1 + length)


def _whole_file(path: str, hunks: int, old: bytes | None, new: bytes | None, now: bytes | None) -> Iterator[Hunk]:
    """A file that is created, deleted or absent: its hunks share one fate."""
    text = _telling(new) - _telling(old)
    count = text.total()
    if now is None:
        # Gone may mean moved: only a file that the change itself deletes, or creates, is judged by its absence.
        state = "there" if new is None else "missing" if old is None else "unclear"
        found = 0
    else:
        found = (_telling(now) & text).total()
        if now == new:
            state = "there"
        elif now == old:
            state = "missing"
        elif new is not None and count and found >= 0.9 * count:
            state = "reworded"
        else:
            state = "partial" if found >= max(PARTIAL_LINES, PARTIAL_SHARE * count) else "unclear"
    for number in range(1, hunks + 1):
        yield Hunk(path, number, state, count if number == 1 else 0, found if number == 1 else 0)


def _telling(data: bytes | None) -> Counter[str]:
    text = (data or b"").decode(errors="replace")
    return Counter(line for line in map(str.strip, text.splitlines()) if distinctive(line))


class _Placement:
    """Where the lines of a file with a change are in a release, by aligning the two."""

    def __init__(self, old: bytes, new: bytes, now: bytes) -> None:
        self.old, self.new, self.now = lines_of(old), lines_of(new), lines_of(now)
        self.release = now
        self.with_change = new

    @cached_property
    def matched(self) -> dict[int, int]:
        """Line of the file with the change → the same line of the release."""
        matcher = difflib.SequenceMatcher(None, _stripped(self.new), _stripped(self.now), autojunk=False)
        return {
            block.a + offset: block.b + offset
            for block in matcher.get_matching_blocks()
            for offset in range(block.size)
        }

    def gap(self, start: int, end: int) -> list[str]:
        """Lines of the release between the neighbours of new[start:end], without those that are matched."""
        low = next((self.matched[at] + 1 for at in range(start - 1, -1, -1) if at in self.matched), 0)
        high = next((self.matched[at] for at in range(end, len(self.new)) if at in self.matched), len(self.now))
        taken = set(self.matched.values())
        return [_text(self.now[at]) for at in range(low, max(high, low)) if at not in taken]


def _one_hunk(path: str, number: int, place: _Placement, hunk: unidiff.Hunk) -> Hunk:
    source, target = _ranges(hunk)
    before = Counter(map(_text, place.old))
    old, new = place.old[slice(*source)], place.new[slice(*target)]
    edits = [
        (old[i1:i2], target[0] + j1, target[0] + j2)
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
    added = [_text(place.new[at]) for _, start, end in edits for at in range(start, end)]
    telling = sum(1 for line in added if distinctive(line) and line not in before)
    undone = b"".join([*place.new[: target[0]], *old, *place.new[target[1] :]])
    merged, clean = merge_file(place.release, place.with_change, undone)
    if clean:
        there = merged != place.release
        return Hunk(path, number, "there" if there else "missing", telling, telling if there else 0)
    states, found = [], 0
    for removed, start, end in edits:
        state, some = _one_edit(place, [_text(line) for line in removed], start, end, before)
        states.append(state)
        found += some
    return Hunk(path, number, _together(states, telling, found), telling, found)


def _one_edit(place: _Placement, removed: list[str], start: int, end: int, before: Counter[str]) -> tuple[str, int]:
    """The state of one run of changed lines, and how many of its telling lines are at their place."""
    gap = place.gap(start, end)
    still = [line for line in removed if distinctive(line) and line in gap]
    others = [line for line in gap if line not in still]
    wanted = [at for at in range(start, end) if distinctive(_text(place.new[at]))]
    exact = [at for at in wanted if at in place.matched]
    similar = 0
    for at in wanted:
        partner = next((line for line in others if _rewords(line, _text(place.new[at]), removed)), None)
        if at not in place.matched and partner is not None:
            others.remove(partner)
            similar += 1
    found = sum(1 for at in exact if _text(place.new[at]) not in before)
    if still:
        return ("missing" if not exact else "partial"), found
    if len(exact) == len(wanted) and wanted:
        return "there", found
    if wanted and len(exact) + similar == len(wanted):
        return "reworded", found
    return ("partial" if exact else "unclear"), found


def _together(states: list[str], telling: int, found: int) -> str:
    if all(state == "there" for state in states):
        return "there"
    if all(state in ("there", "reworded") for state in states):
        return "reworded"
    if found >= max(PARTIAL_LINES, PARTIAL_SHARE * telling):
        return "partial"
    return "missing" if any(state == "missing" for state in states) else "unclear"


def _rewords(line: str, wanted: str, removed: list[str]) -> bool:
    """Whether `line` is `wanted` in other words, and not rather a line that should have gone."""
    ratio = _similarity(line, wanted)
    return ratio >= SIMILAR and all(_similarity(line, old) <= ratio for old in removed)


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _text(line: bytes) -> str:
    return line.decode(errors="replace").strip()


def _stripped(lines: list[bytes]) -> list[str]:
    return [_text(line) for line in lines]
