"""Work on a series with git: one commit per patch out, canonical patches back in."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sm120.integration.apply import apply_patch
from sm120.integration.canonical import DIFF, git
from sm120.integration.checkout import Checkout
from sm120.integration.identity import Recipe
from sm120.integration.overlay import place_overlay
from sm120.integration.patch_file import SEPARATOR, SLUG, parse_patch
from sm120.integration.refusal import Refusal
from sm120.integration.runtime import pristine_of

BASE_TAG = "sm120-base"


def edit(checkout: Checkout, recipe: Recipe, folder: Path) -> int:
    """Make `folder` a git repository of the patched tree: the overlaid release, then one commit per patch.

    The commit message is the patch's header plus a `Slug:` line. Returns the number of patch commits.

    Raises:
        Refusal: `workspace-exists` when `folder` is not empty; `patch-conflict` and its kind. The commits up to a
            refused patch stay, so that it can be mended there.
    """
    if folder.exists() and any(folder.iterdir()):
        raise Refusal("workspace-exists", "is not empty", path=folder, fix="name a new folder")
    shutil.copytree(pristine_of(checkout, recipe), folder, dirs_exist_ok=True, symlinks=True)
    place_overlay(folder, recipe.overlay)
    git(folder, "init", "--quiet", "--initial-branch=series")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", f"{recipe.series.project} {recipe.series.pin.version} and overlay")
    git(folder, "tag", BASE_TAG)
    for patch in recipe.series.patches:
        apply_patch(folder, patch)
        git(folder, "add", "--all", "--force")
        git(folder, "commit", "--quiet", "--cleanup=verbatim", "--message", f"{patch.header}Slug: {patch.slug}\n")
    return len(recipe.series.patches)


def save(checkout: Checkout, project: str, folder: Path) -> list[str]:
    """Write the commits of a workspace back as the series of `project`; returns the slugs in order.

    Nothing is written unless every commit makes a valid patch. Patches whose commit is gone are deleted.

    Raises:
        Refusal: `workspace-commit` for a commit without a `Slug:` line; `workspace-dirty` and `workspace-rebase` for a
            folder that is not in the state to be saved; and what a patch is refused for.
    """
    target = checkout.patches / project
    try:
        commits = git(folder, "rev-list", "--reverse", f"{BASE_TAG}..HEAD").split()
    except Refusal:
        raise Refusal("workspace-missing", "is not a workspace of `sm120 series edit`", path=folder) from None
    if git(folder, "status", "--porcelain").strip():
        raise Refusal("workspace-dirty", "has changes that are not committed", path=folder, fix="commit them first")
    if any((folder / ".git" / name).exists() for name in ("rebase-merge", "rebase-apply")):
        # HEAD is somewhere in the middle: the patches after it would count as gone.
        raise Refusal(
            "workspace-rebase", "is in the middle of a rebase", path=folder, fix="git rebase --continue, or --abort"
        )
    staging = folder / ".git" / "sm120-save" / project
    shutil.rmtree(staging.parent, ignore_errors=True)
    staging.mkdir(parents=True)
    slugs = []
    for commit in commits:
        message = git(folder, "log", "-1", "--format=%B", commit).rstrip("\n") + "\n"
        found = re.search(r"(?m)^Slug: (\S+)\n\Z", message)
        if not found or not SLUG.fullmatch(found[1]):
            first = message.splitlines()[0]
            raise Refusal(
                "workspace-commit",
                f"commit {commit[:12]} ({first!r}) does not end with a line 'Slug: its-name'",
                path=folder,
                fix="git commit --amend, or git rebase --interactive",
            )
        text = message[: found.start()] + SEPARATOR + git(folder, *DIFF, f"{commit}^", commit)
        (staging / f"{found[1]}.patch").write_bytes(text.encode(errors="surrogateescape"))
        parse_patch(staging / f"{found[1]}.patch")
        slugs.append(found[1])
    if len(set(slugs)) != len(slugs):
        twice = sorted({slug for slug in slugs if slugs.count(slug) > 1})
        raise Refusal("workspace-commit", f"two commits have the slug {twice[0]!r}", path=folder)
    for slug in slugs:
        (staging / f"{slug}.patch").replace(target / f"{slug}.patch")
    for stale in target.glob("*.patch"):
        if stale.stem not in slugs:
            stale.unlink()
    comments = [line for line in (target / "series").read_text().splitlines() if line.startswith("#")]
    (target / "series").write_text("\n".join([*comments, *(f"{slug}.patch" for slug in slugs)]) + "\n")
    return slugs
