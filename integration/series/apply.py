"""Apply a series to a tree: zero fuzz, zero drift, all or nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from sm120.integration.common.git import isolated, run_git, words
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.overlay import OverlayFile, place_overlay
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.series import Series


def apply_patch(tree: Path, patch: Patch) -> None:
    """Apply one patch to `tree`; nothing is written when it is refused, except that a drifted hunk is applied.

    The caller works on a copy and throws it away on a refusal.

    Raises:
        Refusal: `patch-conflict` (context does not match), `patch-drift` (it matches at another line),
            `patch-exists`, `patch-symlink`, each with file and line; `disk-full`.
    """
    result = _git_apply(tree, patch.path)
    if result.returncode != 0:
        raise _conflict(patch, result.stderr)
    if drift := _drift(patch, result.stderr):
        raise drift


def applies_with_drift(tree: Path, patch_file: Path) -> subprocess.CompletedProcess[str]:
    """Apply with line offsets allowed (never fuzz): what a refresh does."""
    return _git_apply(tree, patch_file)


def apply_mode(tree: Path, patch_file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`git apply` with `--check`, `--reverse` or both; line offsets are allowed, fuzz is not."""
    return _git_apply(tree, patch_file, *options)


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


def _git_apply(tree: Path, patch_file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    answer = run_git(
        tree,
        *("apply", "-p1", "--verbose", *options, str(patch_file.resolve())),
        # Inside another repository `git apply` silently skips paths outside its own folder: hide that repository.
        environment=isolated() | {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)},
    )
    return subprocess.CompletedProcess(answer.args, answer.returncode, "", words(answer))


def _conflict(patch: Patch, stderr: str) -> Refusal:
    if found := re.search(r"error: patch failed: (.+):(\d+)", stderr):
        target, line = found[1], int(found[2])
        return Refusal(
            "patch-conflict",
            f"hunk for {target} line {line} does not match the tree (no fuzz is allowed)",
            path=patch.path,
            line=patch.hunk_line(target, line),
            fix=f"sm120 series edit {patch.project} DIR, mend the commit {patch.slug!r}, sm120 series save",
        )
    if found := re.search(r"error: (.+): already exists in working directory", stderr):
        return Refusal("patch-exists", f"creates {found[1]}, which is there already", path=patch.path)
    if found := re.search(r"error: (.+): No such file or directory", stderr):
        return Refusal("patch-conflict", f"changes {found[1]}, which the tree lacks", path=patch.path)
    if found := re.search(r"(?:affected file|reading from) '(.+)' (?:is )?beyond a symbolic link", stderr):
        return Refusal("patch-symlink", f"{found[1]} lies beyond a symbolic link", path=patch.path)
    return Refusal("patch-conflict", stderr.strip().splitlines()[-1] if stderr.strip() else "refused", path=patch.path)


def _drift(patch: Patch, stderr: str) -> Refusal | None:
    target = ""
    for line in stderr.splitlines():
        if found := re.match(r"Checking patch (.+?)(?: => .+)?\.\.\.", line):
            target = found[1]
        elif found := re.match(r"Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)", line):
            number, at, offset = int(found[1]), int(found[2]), int(found[3])
            return Refusal(
                "patch-drift",
                f"hunk {number} of {target} matches at line {at}, not {at - offset}",
                path=patch.path,
                line=patch.hunk_line(target, at - offset),
                fix=f"sm120 series refresh {patch.project}",
            )
    return None
