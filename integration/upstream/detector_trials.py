"""Two more trials of the detector: a hunk left out of what is carried here, and commits of a clone in other words.

* **left out**: each patch of a series on its own result, whole and without each of its hunks. The right answers are
  "merged" and "partly", with the hunk that lacks.
* **reworded**: commits of upstream's history as patches of which a share of the added lines is in other words. The
  right answer is that commit; in the history before it (the control) nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import unidiff

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.git import git
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import load_pin
from sm120.integration.upstream.detector import SOURCE
from sm120.integration.upstream.history import History
from sm120.integration.upstream.hunks import without_hunk
from sm120.integration.upstream.ladder import Change, climb, decide
from sm120.integration.upstream.stages import stage_series

SMALLEST, LARGEST = 10, 300
"""Changed lines of a commit that is carried as a patch."""
SHARES = (0, 10, 20, 30, 40, 50)
"""Per cent of the added lines that are reworded."""

Files = dict[str, bytes | None]


@dataclass(frozen=True)
class LeftOut:
    """One patch on its own result without one hunk; none is left out where `hunk` is empty."""

    slug: str
    hunk: str
    state: str
    where: str

    @property
    def right(self) -> bool:
        return self.state == "merged" if not self.hunk else (self.state, self.where) == ("partly", self.hunk)


def left_out(checkout: Checkout, project: str) -> Iterator[LeftOut]:
    """Every patch of `project`, whole, and where it has several hunks without each of them."""
    for stage in stage_series(checkout, project).stages:
        yield _judged(stage.patch.slug, "", stage.change, stage.change.after)
        files = list(unidiff.PatchSet(stage.change.diff))
        for file in files if sum(map(len, files)) > 1 else ():
            before, after = stage.change.before[file.path], stage.change.after[file.path]
            for number, hunk in enumerate(file, 1):
                whole = before is None or after is None  # a file that comes or goes is one hunk
                rest = before if whole else without_hunk(before or b"", after or b"", hunk)
                release = stage.change.after | {file.path: rest}
                yield _judged(stage.patch.slug, f"{file.path}:{number}", stage.change, release)


def _judged(slug: str, hunk: str, change: Change, release: Files) -> LeftOut:
    verdict = climb(change, {path: data for path, data in release.items() if data is not None})
    return LeftOut(slug, hunk, decide([verdict])[0], verdict.where)


def left_out_summary(trials: list[LeftOut]) -> str:
    """Two lines of Markdown."""
    lines = []
    for name, some in (
        ("one hunk left out: partly, with that hunk", [trial for trial in trials if trial.hunk]),
        ("whole: merged", [trial for trial in trials if not trial.hunk]),
    ):
        right = sum(trial.right for trial in some)
        lines.append(f"| {name} | {right} of {len(some)} ({100 * right / max(len(some), 1):.1f} %) |\n")
    return "".join(["| trial | right |\n| --- | --- |\n", *lines])


@dataclass(frozen=True)
class Reworded:
    """One commit with a share of its added lines in other words."""

    commit: str
    share: int
    found: str
    """The commit that the history up to the newer release gave; empty for none."""
    control: str
    """The same of the history before the commit."""


def reworded_commits(
    checkout: Checkout,
    project: str,
    clone: Path,
    between: str,
    sample: int,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Reworded]:
    """Up to `sample` commits between two releases of a clone (`0.6.14..0.6.17`), chosen by a hash, at each of `SHARES`.

    Raises:
        Refusal: `detector-between`; `history-clone` when the clone or one of the tags is not there.
    """
    older, dots, newer = between.partition("..")
    if not (older and dots and newer):
        raise Refusal("detector-between", f"{between!r} is not OLDER..NEWER", fix="name two versions: 0.6.14..0.6.17")
    pin = load_pin(checkout.patches / project)
    tag = pin.git_tag.replace(pin.version, older)
    history = History(clone, pin.model_copy(update={"version": older, "git_tag": tag}))
    base, tip = history.base, history.commit_of(newer)
    for number, commit in enumerate(commits := pick_commits(clone, base, tip, sample), 1):
        report(f"{number} of {len(commits)}: {commit[:12]}")
        before, after = _sides(clone, commit)
        for share in SHARES:
            ours = {path: in_other_words(before[path], data, share) for path, data in after.items()}
            found = history.between(before, ours, base, tip)
            control = history.between(before, ours, base, f"{commit}^")
            yield Reworded(commit, share, found.commit if found else "", control.commit if control else "")


def pick_commits(clone: Path, base: str, tip: str, sample: int) -> list[str]:
    """Commits that change sources, and nothing that comes or goes, by `SMALLEST` to `LARGEST` lines."""
    found = []
    said = git(clone, "log", "--no-merges", "--no-renames", "--numstat", "--format=commit %H", f"{base}..{tip}")
    for text in re.split(r"(?m)^commit ", said)[1:]:
        commit, *lines = text.split("\n")
        rows = [line.split("\t") for line in lines if line]
        if rows and all(SOURCE.fullmatch(path) and size.isdigit() for size, _, path in rows):
            changed = sum(int(added) + int(removed) for added, removed, _ in rows)
            if SMALLEST <= changed <= LARGEST and None not in [
                *(sides := _sides(clone, commit))[0].values(),
                *sides[1].values(),
            ]:
                found.append((hashlib.sha256(commit.encode()).hexdigest(), commit))
    return [commit for _, commit in sorted(found)[:sample]]


def _sides(clone: Path, commit: str) -> tuple[Files, Files]:
    names = git(clone, "diff", "--no-renames", "--name-only", "-z", f"{commit}^", commit).split("\0")
    before, after = ({name: _blob(clone, f"{one}:{name}") for name in names if name} for one in (f"{commit}^", commit))
    return before, after


def _blob(clone: Path, name: str) -> bytes | None:
    try:
        return git(clone, "cat-file", "blob", name).encode(errors="surrogateescape")
    except Refusal:
        return None


def in_other_words(before: bytes | None, after: bytes | None, share: int) -> bytes | None:
    """`after` with `share` per cent of the lines that it adds reworded: one name is another, and a comment follows."""
    if after is None:
        return None
    old = set((before or b"").splitlines())
    lines = after.splitlines(keepends=True)
    added = [at for at, line in enumerate(lines) if line.strip() and line.rstrip(b"\r\n") not in old]
    ranked = sorted(added, key=lambda at: hashlib.sha256(b"%d:%s" % (at, lines[at])).digest())
    for at in ranked[: round(len(ranked) * share / 100)]:
        text = lines[at].rstrip(b"\r\n")
        text = re.sub(rb"[A-Za-z_]\w{2,}", lambda match: match[0] + b"_of_review", text, count=1)
        lines[at] = text + b"  # as the review asked\n"
    return b"".join(lines)


def reworded_summary(trials: list[Reworded]) -> str:
    """Markdown: for each share, how many were found with the right commit, and how many where there was none."""
    rows: dict[str, list[str]] = {
        "found, with the right commit": [],
        "found in the history before that commit (must be 0)": [],
    }
    for share in SHARES:
        some = [trial for trial in trials if trial.share == share]
        right = sum(trial.found == trial.commit for trial in some)
        false = sum(bool(trial.control) for trial in some)
        for row, count in zip(rows.values(), (right, false), strict=True):
            row.append(f"{count} of {len(some)}")
    head = ["reworded lines", *(f"{share} %" for share in SHARES)]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    return "\n".join(lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]) + "\n"
