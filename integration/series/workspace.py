"""Work on a series with git: one commit per patch out, canonical patches back in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.git import git
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.apply import apply_patch
from sm120.integration.series.canonical import DIFF
from sm120.integration.series.commit_message import header_of, message_of
from sm120.integration.series.overlay import OverlayFile, place_overlay
from sm120.integration.series.patch_file import SEPARATOR, parse_patch
from sm120.integration.series.pin import load_pin
from sm120.integration.series.series import Series, write_patches

BASE_TAG = "sm120-base"
BRANCH = "series"
# In .git: the patches that `edit` has made no commit of, because it was refused one or did not come to its end.
WAITING = "sm120-waiting"


def edit(series: Series, overlay: list[OverlayFile], pristine: Path, folder: Path) -> None:
    """Make `folder` a git repository of the patched tree: the overlaid release, then one commit per patch.

    The commit message is the header in git's own form (see commit_message.py).

    Raises:
        Refusal: `workspace-exists` when `folder` is no folder or not empty; `patch-conflict` and its kind. The commits up to a
            refused patch stay, so that it can be mended there.
    """
    check_empty(folder)
    shutil.copytree(pristine, folder, dirs_exist_ok=True, symlinks=True)
    place_overlay(folder, overlay)
    git(folder, "init", "--quiet", f"--initial-branch={BRANCH}")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", f"{series.project} {series.pin.version} and overlay")
    git(folder, "tag", BASE_TAG)
    waiting = [patch.slug for patch in series.patches]
    for patch in series.patches:
        (folder / ".git" / WAITING).write_text("\n".join(waiting))
        apply_patch(folder, patch)
        git(folder, "add", "--all", "--force")
        git(folder, "commit", "--quiet", "--cleanup=verbatim", "--message", message_of(patch))
        waiting.remove(patch.slug)
    (folder / ".git" / WAITING).write_text("")


def check_empty(folder: Path) -> None:
    """Refuse, with `workspace-exists`, what is there and is no empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refusal("workspace-exists", "is not an empty folder", path=folder, fix="name a new folder")


class Saved(NamedTuple):
    """The series that `save` wrote.

    `slugs` are in order; those of them that are `unseen` have no commit and were kept as they were. `deleted` lost
    their commit, and with it their file.
    """

    slugs: list[str]
    unseen: list[str]
    deleted: list[str]


def save(checkout: Checkout, project: str, folder: Path) -> Saved:
    """Write the commits of a workspace back as the series of `project`.

    Nothing is written unless every commit makes a valid patch. Patches whose commit is gone are deleted. Those that
    `edit` made no commit of, as it was refused one and came to none behind it, are not known to be unwanted: while
    they have a file, and until a commit has their slug, they stay behind the others as they are.

    Raises:
        Refusal: `workspace-missing`; `workspace-commit` for a commit without a `Slug:` line; `workspace-dirty`,
            `workspace-rebase`, `workspace-branch` and `workspace-empty` for a folder that is not in the state to be
            saved; and what a patch is refused for.
    """
    target = checkout.patches / project
    load_pin(target)  # refused where there is no such project
    if not folder.is_dir():
        raise Refusal("workspace-missing", "no such folder", path=folder, fix=f"sm120 series edit {project} {folder}")
    try:
        commits = git(folder, "rev-list", "--reverse", f"{BASE_TAG}..HEAD").split()
    except Refusal:
        raise Refusal("workspace-missing", "is not a workspace of `sm120 series edit`", path=folder) from None
    if git(folder, "status", "--porcelain").strip():
        raise Refusal("workspace-dirty", "has changes that are not committed", path=folder, fix="commit them first")
    inside = Path(folder, git(folder, "rev-parse", "--git-dir").rstrip("\n"))
    if any((inside / name).exists() for name in ("rebase-merge", "rebase-apply")):
        # HEAD is somewhere in the middle: the patches after it would count as gone.
        raise Refusal(
            "workspace-rebase", "is in the middle of a rebase", path=folder, fix="git rebase --continue, or --abort"
        )
    head = git(folder, "rev-parse", "--symbolic-full-name", "HEAD").strip()
    if head != f"refs/heads/{BRANCH}":
        # Of any other commit it is not known that the series ends there: the patches after it would count as gone.
        where = head.removeprefix("refs/heads/") if head != "HEAD" else "no branch"
        raise Refusal(
            "workspace-branch",
            f"is on {where}, and the series is the branch {BRANCH!r}",
            path=folder,
            fix=f"git checkout {BRANCH}; to save this commit instead, git checkout -B {BRANCH}",
        )
    try:
        waiting = (inside / WAITING).read_text().split()
    except FileNotFoundError:
        waiting = []
    if not commits and not waiting and any(target.glob("*.patch")):
        raise Refusal(
            "workspace-empty",
            f"has no commit after {BASE_TAG}: every patch of {project} would be deleted",
            path=folder,
            fix=f"git reset --hard to the last commit (git reflog {BRANCH}); to drop every patch, delete the files",
        )
    staging = inside / "sm120-save" / project
    shutil.rmtree(staging.parent, ignore_errors=True)
    staging.mkdir(parents=True)
    slugs = []
    for commit in commits:
        message = git(folder, "log", "-1", "--format=%B", commit)
        found = header_of(message, project)
        if found is None:
            raise Refusal(
                "workspace-commit",
                f"commit {commit[:12]} ({message.splitlines()[0]!r}) does not end with trailers of which the last is "
                "'Slug: its-name'",
                path=folder,
                fix="git commit --amend, or git rebase --interactive",
            )
        slug, header = found
        text = header + SEPARATOR + git(folder, *DIFF, f"{commit}^", commit)
        (staging / f"{slug}.patch").write_bytes(text.encode(errors="surrogateescape"))
        parse_patch(staging / f"{slug}.patch")
        slugs.append(slug)
    if len(set(slugs)) != len(slugs):
        twice = sorted({slug for slug in slugs if slugs.count(slug) > 1})
        raise Refusal("workspace-commit", f"two commits have the slug {twice[0]!r}", path=folder)
    texts = {slug: (staging / f"{slug}.patch").read_bytes() for slug in slugs}
    unseen = [slug for slug in waiting if slug not in texts and (target / f"{slug}.patch").is_file()]
    before = sorted(path.stem for path in target.glob("*.patch"))
    write_patches(target, texts, slugs + unseen)
    return Saved(slugs + unseen, unseen, [slug for slug in before if slug not in slugs + unseen])
