"""Has upstream taken a change? A ladder of tests on one release, each rung reported and the verdict explained.

1. the change applies forward (line offsets allowed, never fuzz);
2. it applies in reverse, exactly: everything it wrote is there;
3. a three-way reverse is clean *and changes the files*: it is there, and its surroundings moved on;
4. nearly all of the lines that it adds are there and nearly all that it removes are gone;
5. its probe passes on the unpatched release: whatever upstream wrote, the defect is gone.

Rungs 1-4 look at text and are cheap. Only rung 5 can see a fix by different code. The rules below were measured on
changes between real releases (`sm120 detector`); a rung that gave a false "merged" there decides nothing alone.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.common import git as git_environment
from sm120.integration.series.apply import applies_with_drift, apply_mode
from sm120.integration.upstream.releases import write_files

# Rung 4: shares, and how many distinctive lines a change needs before its text says anything.
ADDED_SHARE = 0.9
REMOVED_SHARE = 0.9
MINIMUM_LINES = 3

RUNGS = ("forward", "reverse", "reverse 3-way", "added lines", "probe")


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
    """The first four rungs, and whether they say that the change is in the release."""

    rungs: tuple[Rung, ...]
    merged: bool
    why: str
    failed_at: str
    """`file:hunk` where it does not apply forward."""

    def rung(self, name: str) -> Rung:
        return next(rung for rung in self.rungs if rung.name == name)


def climb(change: Change, files: dict[str, bytes]) -> TextVerdict:
    """Rungs 1-4 of `change` on a release of which `files` holds (at least) every file that the change touches."""
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
    rungs = (
        Rung("forward", forward.returncode == 0, failed_at or "applies"),
        Rung("reverse", reverse.returncode == 0, "applies in reverse" if reverse.returncode == 0 else "does not"),
        _reverse_three_way(change, files),
        _added_lines(change, files),
    )
    merged, why = _text_verdict(*rungs)
    return TextVerdict(rungs, merged, why, failed_at)


def along_history(verdicts: list[TextVerdict]) -> tuple[bool, str]:
    """Whether the last of `verdicts` (of releases newer than the pin, oldest first) has the change, and why.

    Code goes on changing after a change is taken, so the release that took it says so most clearly. What was taken once
    and does not apply forward now counts as taken; when it applies forward again, upstream has taken it back.
    """
    last = verdicts[-1]
    if last.merged:
        return True, last.why
    if not last.rung("forward").holds and any(verdict.merged for verdict in verdicts):
        return True, "an earlier release took it, and its code has moved on since"
    return False, last.why


def _text_verdict(forward: Rung, reverse: Rung, three_way: Rung, lines: Rung) -> tuple[bool, str]:
    if forward.holds and reverse.holds:
        return False, "it applies both ways, so its text cannot tell; ask the probe"
    if reverse.holds:
        return True, "it applies in reverse, exactly"
    if forward.holds:
        return False, "it applies forward"
    if three_way.holds and lines.holds:
        return True, f"a three-way reverse is clean and changes the files; {lines.detail}"
    if lines.holds:
        return True, f"{lines.detail}, and it no longer applies forward"
    if three_way.holds and lines.holds is None:
        return True, "a three-way reverse is clean and changes the files; too few lines to count"
    return False, "it applies in neither direction"


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
    return Counter(line for line in map(str.strip, text.splitlines()) if len(re.sub(r"\W", "", line)) > 3)


def merge_file(
    current: bytes, base: bytes, other: bytes, labels: tuple[str, str, str] | None = None
) -> tuple[bytes, bool]:
    """git's three-way merge of one file: (result, whether it is clean); conflicts carry diff3 markers."""
    with tempfile.TemporaryDirectory(prefix="sm120-merge-") as name:
        folder = Path(name)
        paths = [folder / part for part in ("current", "base", "other")]
        for path, data in zip(paths, (current, base, other), strict=True):
            path.write_bytes(data)
        options = [part for label in labels or () for part in ("-L", label)]
        command = ["git", *git_environment.OPTIONS, "merge-file", "-p", "--diff3", *options, *map(str, paths)]
        result = subprocess.run(command, capture_output=True, cwd=folder, env=git_environment.isolated())
    return result.stdout, result.returncode == 0


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
