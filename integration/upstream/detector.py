"""Measure the ladder on real history: changes between released versions, whose answer is known.

Nobody publishes which carried patches were merged, but the releases themselves give changes with known answers:

* **merged**: hunks that release B has and A lacks, as a patch on A. Upstream took it in B, so at B and every later
  release the right answer is "merged"; distance counts the releases after B. (When upstream rewrote the code again
  later, the answer still counts as merged and a miss counts against us.)
* **edited**: the same with one added line reworded, as a review would: what upstream took is not what we carry.
* **without its smallest hunk**: the same, and B without the smallest of its hunks: upstream took the rest. The right
  answer is "partly".
* **never merged, older release**: the same patch on releases up to A, which upstream had not changed yet.
* **never merged, newer release**: the patch from B back to A's code, on B and later. Upstream has not taken it. (When
  upstream really reverted the change later, we would call that a false positive, against us.)

A change is a run of neighbouring hunks of one source file; which ones are taken follows from a hash, not from chance.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import unidiff

from sm120.integration.common.checkout import Checkout
from sm120.integration.upstream.hunks import without_hunk
from sm120.integration.upstream.ladder import STATES, Change, TextVerdict, climb, decide
from sm120.integration.upstream.merge import merge_file
from sm120.integration.upstream.releases import Release, fetched, load_releases

SOURCE = re.compile(r".*\.(py|cu|cuh|h|hpp|cpp)")
CONTEXT = 3
SMALLEST, LARGEST = 3, 80
"""Added and removed lines of a change that is taken."""
HUNKS = 3

KINDS = (
    "merged",
    "edited",
    "without its smallest hunk",
    "never merged, older release",
    "never merged, newer release",
)
TAKEN = ("merged", "edited")


@dataclass(frozen=True)
class Trial:
    """One change on one release."""

    kind: str
    project: str
    change: str
    release: str
    distance: int
    verdict: TextVerdict
    state: str
    """What the rule of the matrix and the bump says, which looks at the releases between, too (`ladder.decide`)."""

    @property
    def right(self) -> bool:
        if self.kind == "without its smallest hunk":
            return self.state == "partly"
        return (self.state == "merged") == (self.kind in TAKEN)


def measure(
    checkout: Checkout, project: str, sample: int, report: Callable[[str], None] = lambda line: None
) -> list[Trial]:
    """Up to `sample` changes between each two neighbouring releases of `project`, on every release, in every kind."""
    releases = load_releases(checkout.patches / project)
    wheels = [_sources(fetched(checkout, release)) for release in releases]
    trials: list[Trial] = []
    for index in range(1, len(releases)):
        changes = pick_changes(wheels[index - 1], wheels[index], sample)
        report(f"{project} {releases[index - 1].version} → {releases[index].version}: {len(changes)} changes")
        for path, old, new in changes:
            trials += _trials(project, releases, wheels, index, path, old, new)
    return trials


def _trials(
    project: str, releases: list[Release], wheels: list[dict[str, bytes]], index: int, path: str, old: bytes, new: bytes
) -> Iterator[Trial]:
    name = f"{releases[index - 1].version}→{releases[index].version} {path}"
    forward = as_change(path, old, new)
    edited = reworded(old, new)
    back = as_change(path, wheels[index][path], _undone(wheels[index][path], old, new))
    newer = {"merged": forward, KINDS[4]: back}
    if edited is not None:
        newer["edited"] = as_change(path, old, edited)
    for kind, change in newer.items():
        history: list[TextVerdict] = []
        for other in range(index, len(releases)):
            if change.diff:
                history.append(climb(change, _only(path, wheels[other])))
                state, _ = decide(history)
                yield Trial(kind, project, name, releases[other].version, other - index, history[-1], state)
    if (rest := _without_smallest(path, forward, wheels[index][path])) is not None:
        verdict = climb(forward, {path: rest})
        yield Trial(KINDS[2], project, name, releases[index].version, 0, verdict, decide([verdict])[0])
    for other in range(index):
        verdict = climb(forward, _only(path, wheels[other]))
        distance = index - 1 - other
        yield Trial(KINDS[3], project, name, releases[other].version, distance, verdict, decide([verdict])[0])


def _without_smallest(path: str, change: Change, release: bytes) -> bytes | None:
    """`release`, which has the change, without the smallest of its hunks; None when there is one hunk, or it is stuck."""
    (file,) = unidiff.PatchSet(change.diff)
    before, after = change.before[path], change.after[path]
    if len(file) < 2 or before is None or after is None:
        return None
    smallest = min(range(len(file)), key=lambda at: file[at].added + file[at].removed)
    rest = without_hunk(before, after, file[smallest])
    merged, clean = merge_file(release, after, rest)
    return merged if clean and merged != release else None


def _only(path: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: files[path]} if path in files else {}


def pick_changes(before: dict[str, bytes], after: dict[str, bytes], sample: int) -> list[tuple[str, bytes, bytes]]:
    """(path, file before, file with only this change), at most `sample`, chosen by a hash of path and place."""
    found = []
    for path in sorted(before.keys() & after.keys()):
        if before[path] != after[path]:
            for number, new in enumerate(_runs(before[path], after[path])):
                rank = hashlib.sha256(f"{path}:{number}".encode()).hexdigest()
                found.append((rank, path, before[path], new))
    return [(path, old, new) for _, path, old, new in sorted(found)[:sample]]


def _runs(before: bytes, after: bytes) -> Iterator[bytes]:
    """The file before with one run of neighbouring hunks applied, for each run that is neither tiny nor huge."""
    try:
        old, new = before.decode().splitlines(keepends=True), after.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return
    if len(old) > 20000:  # generated tables: difflib would take minutes
        return
    groups = list(difflib.SequenceMatcher(None, old, new, autojunk=True).get_grouped_opcodes(CONTEXT))
    for start in range(0, len(groups), HUNKS):
        edits = [code for group in groups[start : start + HUNKS] for code in group if code[0] != "equal"]
        size = sum((i2 - i1) + (j2 - j1) for _, i1, i2, j1, j2 in edits)
        if SMALLEST <= size <= LARGEST:
            lines = list(old)
            for _, i1, i2, j1, j2 in reversed(edits):
                lines[i1:i2] = new[j1:j2]
            yield "".join(lines).encode()


def _undone(release: bytes, old: bytes, new: bytes) -> bytes:
    """`release` with the change from `old` to `new` taken out again."""
    merged, clean = merge_file(release, new, old)
    return merged if clean else release


def reworded(old: bytes, new: bytes) -> bytes | None:
    """`new` with one of its added lines changed in the middle; None when fewer than ten lines were added."""
    before = set(old.splitlines())
    lines = new.splitlines(keepends=True)
    added = [number for number, line in enumerate(lines) if line.strip() and line.rstrip(b"\n") not in before]
    if len(added) < 10:
        return None
    number = added[len(added) // 2]
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = indent + b"reworded_in_review" + lines[number].lstrip()
    return b"".join(lines)


def as_change(path: str, old: bytes, new: bytes) -> Change:
    """The change of one file with its canonical diff."""
    lines = difflib.unified_diff(
        old.decode().splitlines(keepends=True),
        new.decode().splitlines(keepends=True),
        f"a/{path}",
        f"b/{path}",
        n=CONTEXT,
    )
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return Change(f"diff --git a/{path} b/{path}\n{text}" if text else "", {path: old}, {path: new})


def _sources(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if SOURCE.fullmatch(name)}


def summary(trials: list[Trial]) -> str:
    """Markdown: for each kind and distance, what was answered, and how often each rung held."""
    rungs = ("forward", "reverse", "reverse 3-way", "added lines", "hunks")
    head = ("kind", "distance", "trials", "right", "merged, by this release alone", *STATES, *rungs)
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for kind in KINDS:
        for distance in sorted({trial.distance for trial in trials if trial.kind == kind}):
            some = [trial for trial in trials if (trial.kind, trial.distance) == (kind, distance)]
            right = sum(trial.right for trial in some)
            cells = [f"{right} ({100 * right / len(some):.1f} %)", str(sum(trial.verdict.merged for trial in some))]
            cells += [str(sum(trial.state == state for trial in some)) for state in STATES]
            cells += [str(sum(bool(trial.verdict.rung(name).holds) for trial in some)) for name in rungs]
            lines.append(f"| {kind} | {distance} | {len(some)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
