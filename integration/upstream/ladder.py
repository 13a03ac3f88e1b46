"""Has upstream taken a change? A ladder of tests on one release, each rung reported and the verdict explained.

1. the change applies forward (line offsets allowed, never fuzz);
2. it applies in reverse, exactly: everything it wrote is there;
3. a three-way reverse is clean *and changes the files*: it is there, and its surroundings moved on;
4. nearly all of the lines that it adds are there and nearly all that it removes are gone;
5. every hunk of it is there, each judged alone (`hunks`);
6. its probe passes on the unpatched release: whatever upstream wrote, the defect is gone.

Rungs 1-5 look at text and are cheap. Only rung 6 can see a fix by different code, and where it fails no text says
"merged" (`matrix`). The rules below were measured on changes between real releases (`sm120 detector`); a rung that
gave a false "merged" there decides nothing alone.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.series.apply import applies_with_drift, apply_mode
from sm120.integration.upstream.hunks import Hunk, distinctive, hunk_states
from sm120.integration.upstream.merge import merge_file
from sm120.integration.upstream.releases import write_files

# Rung 4: shares, and how many distinctive lines a change needs before its text says anything.
ADDED_SHARE = 0.9
REMOVED_SHARE = 0.9
MINIMUM_LINES = 3

# What counts as positive evidence that a release still has what an earlier one took, once the code moved on.
STILL_SHARE = 0.5

STATES = ("merged", "partly", "absent", "not told apart")
"""What text can say: all of it is there; some of it; the code is as it was before; nothing of the above."""


@dataclass(frozen=True)
class Change:
    """A diff with the files it was made from and to; None where a file did not exist."""

    diff: str
    before: dict[str, bytes | None]
    after: dict[str, bytes | None]


@dataclass(frozen=True)
class Rung:
    """What one test said: True, False, or None when it cannot tell."""

    name: str
    holds: bool | None
    detail: str


@dataclass(frozen=True)
class TextVerdict:
    """The first five rungs on one release, and what they say by themselves."""

    rungs: tuple[Rung, ...]
    hunks: tuple[Hunk, ...]
    state: str
    """One of `STATES`."""
    exact: bool
    """It applies in reverse, exactly, and not forward: nothing of it is missing."""
    why: str
    failed_at: str
    """`file:hunk` where it does not apply forward."""

    @property
    def merged(self) -> bool:
        return self.state == "merged"

    @property
    def where(self) -> str:
        """The first hunk that is not there, `file:hunk`, where some are."""
        return next((hunk.name for hunk in self.hunks if hunk.state != "there"), "") if self.state == "partly" else ""

    def rung(self, name: str) -> Rung:
        return next(rung for rung in self.rungs if rung.name == name)


def climb(change: Change, files: dict[str, bytes]) -> TextVerdict:
    """Rungs 1-5 of `change` on a release of which `files` holds (at least) every file that the change touches."""
    with tempfile.TemporaryDirectory(prefix="sm120-ladder-") as name:
        folder = Path(name)
        patch = folder / "change.patch"
        patch.write_text(change.diff, errors="surrogateescape")
        tree = folder / "tree"
        tree.mkdir()
        write_files(tree, {path: data for path, data in files.items() if path in change.before | change.after})
        forward = apply_mode(tree, patch, "--check")
        reverse = apply_mode(tree, patch, "--check", "--reverse")
    failed_at = "" if forward.returncode == 0 else _failed_at(change, forward.stderr)
    applies, exact = forward.returncode == 0, reverse.returncode == 0
    hunks = () if applies else hunk_states(change.diff, change.before, change.after, files)
    rungs = (
        Rung("forward", applies, failed_at or "applies"),
        Rung("reverse", exact, "applies in reverse" if exact else "does not"),
        _reverse_three_way(change, files),
        _added_lines(change, files),
        _every_hunk(hunks, applies),
    )
    state, why = _state(rungs, hunks)
    return TextVerdict(rungs, hunks, state, exact and state == "merged", why, failed_at)


def decide(verdicts: Sequence[TextVerdict]) -> tuple[str, str]:
    """The state on the last of `verdicts` (of releases after the pin, oldest first), and why: the one rule.

    Code goes on changing after a change is taken, so the release that took it says so most clearly. That still counts
    on a later release which shows some of it and has none of it as it was before.
    """
    last = verdicts[-1]
    took = any(verdict.merged for verdict in verdicts[:-1])
    if last.merged or not took:
        return last.state, last.why
    if last.rung("forward").holds:
        return "absent", "an earlier release took it, and upstream has taken it back: it applies forward again"
    if back := [hunk.name for hunk in last.hunks if hunk.state == "missing"]:
        state = "partly" if last.state == "partly" else "absent"
        return state, f"an earlier release took it, and {_some(back)} is as it was before again"
    added, found = sum(hunk.added for hunk in last.hunks), sum(hunk.found for hunk in last.hunks)
    if found and found >= STILL_SHARE * added:
        return "merged", f"an earlier release took it, its code has moved on since, {found} of {added} lines are there"
    if last.rung("hunks").holds:
        return (
            "merged",
            "an earlier release took it, its code has moved on since, lines like its own are at their places",
        )
    if last.state == "partly":
        return last.state, last.why
    return "not told apart", f"an earlier release took it, and {found} of its {added} lines are in this one"


def _state(rungs: tuple[Rung, ...], hunks: tuple[Hunk, ...]) -> tuple[str, str]:
    forward, reverse, three_way, lines, every = rungs
    if forward.holds and reverse.holds:
        return "not told apart", "it applies both ways, so its text cannot tell; ask the probe"
    if reverse.holds and (lacking := [hunk.name for hunk in hunks if hunk.state == "missing"]):
        # Repetitive code: git finds a hunk's lines at another place, while its own is as it was.
        return "partly", f"it applies in reverse, but {_some(lacking)} is as it was before"
    if reverse.holds:
        return "merged", "it applies in reverse, exactly"
    if forward.holds:
        return "absent", "it applies forward"
    if every.holds and lines.holds:
        return "merged", f"every hunk is there; {lines.detail}"
    if every.holds and three_way.holds and lines.holds is None:
        return "merged", "a three-way reverse is clean and changes every file; too few lines to count"
    if every.holds:
        return "not told apart", f"every hunk has lines like its own at its place, but {lines.detail}: look at them"
    good = [hunk for hunk in hunks if hunk.state in ("there", "reworded", "partial") and hunk.found]
    if good:
        lacking = [f"{hunk.name} ({hunk.state})" for hunk in hunks if hunk.state not in ("there", "reworded")]
        return "partly", f"{len(hunks) - len(lacking)} of {len(hunks)} hunks are there; not {_some(lacking)}"
    if any(hunk.state == "missing" for hunk in hunks) and all(hunk.state in ("missing", "unclear") for hunk in hunks):
        return "absent", f"{_some([hunk.name for hunk in hunks if hunk.state == 'missing'])} is as it was before"
    return (
        "not told apart",
        "it applies in neither direction, and its lines are not there: not told apart from a fix in other words",
    )


def _every_hunk(hunks: tuple[Hunk, ...], applies: bool) -> Rung:
    if applies:
        return Rung("hunks", False, "none is there")
    counts = Counter(hunk.state for hunk in hunks)
    detail = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
    return Rung("hunks", bool(hunks) and counts.keys() <= {"there", "reworded"}, f"of {len(hunks)} hunks: {detail}")


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _reverse_three_way(change: Change, files: dict[str, bytes]) -> Rung:
    """Undo the change by merging: base = with it, ours = the release, theirs = without it."""
    changed: list[str] = []
    conflicts: list[str] = []
    for path in change.after.keys() | change.before.keys():
        base, other, current = change.after.get(path), change.before.get(path), files.get(path)
        if base is None or other is None or current is None:  # created, deleted or absent: text of the whole file
            if current == other:
                continue
            (changed if current == base else conflicts).append(path)
            continue
        merged, clean = merge_file(current, base, other)
        if not clean:
            conflicts.append(path)
        elif merged != current:
            changed.append(path)
    total = len(change.after.keys() | change.before.keys())
    if conflicts:
        return Rung("reverse 3-way", False, f"conflicts in {len(conflicts)} of {total} files")
    if len(changed) < total:
        return Rung("reverse 3-way", False, f"clean, but a no-op in {total - len(changed)} of {total} files")
    return Rung("reverse 3-way", True, "clean, and it changes every file")


def _added_lines(change: Change, files: dict[str, bytes]) -> Rung:
    """Count only lines that can tell: not those that the file had before, nor those shorter than four characters."""
    added = removed = found = gone = 0
    for path in change.after.keys() | change.before.keys():
        before, after = _lines(change.before.get(path)), _lines(change.after.get(path))
        now = _lines(files.get(path))
        new, old = after - before, before - after
        added += new.total()
        found += ((now - before) & new).total() if before else (now & new).total()
        removed += old.total()
        gone += sum(count - min(max(now[line] - after[line], 0), count) for line, count in old.items())
    gone_files = [path for path, data in change.after.items() if data is not None and path not in files]
    if gone_files:
        return Rung("added lines", False, f"no {gone_files[0]} in this release")
    # That lines are missing proves nothing: code that never had them looks the same as code that lost them.
    if added == 0 or added + removed < MINIMUM_LINES:
        return Rung("added lines", None, f"{added} added and {removed} removed lines that can tell: too few")
    detail = f"{found} of {added} added lines are there, {gone} of {removed} removed ones are gone"
    holds = found >= ADDED_SHARE * added and gone >= REMOVED_SHARE * removed
    return Rung("added lines", holds, detail)


def _lines(data: bytes | None) -> Counter[str]:
    text = (data or b"").decode(errors="replace")
    return Counter(line for line in map(str.strip, text.splitlines()) if distinctive(line))


def _failed_at(change: Change, stderr: str) -> str:
    if found := re.search(r"error: patch failed: (.+):(\d+)", stderr):
        return f"{found[1]}:{_hunk_number(change.diff, found[1], int(found[2]))}"
    if found := re.search(r"error: (.+): No such file or directory", stderr):
        return f"{found[1]}:gone"
    if found := re.search(r"error: (.+): already exists in working directory", stderr):
        return f"{found[1]}:exists"
    return (stderr.strip().splitlines() or ["refused"])[-1].removeprefix("error: ")


def _hunk_number(diff: str, path: str, start: int) -> int:
    number, inside = 0, False
    for line in diff.splitlines():
        if line.startswith("diff --git "):
            inside, number = line.endswith(f" b/{path}"), 0
        elif inside and (hunk := re.match(r"@@ -(\d+)", line)):
            number += 1
            if int(hunk[1]) == start:
                return number
    return 1


def apply_to(folder: Path, diff: str) -> subprocess.CompletedProcess[str]:
    """Apply `diff` to the files in `folder`: all of it, or nothing and an error."""
    with tempfile.TemporaryDirectory(prefix="sm120-apply-") as name:
        patch = Path(name) / "change.patch"
        patch.write_text(diff, errors="surrogateescape")
        return applies_with_drift(folder, patch)
