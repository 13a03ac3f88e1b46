"""Export a patch as an upstream pull request: commits on a branch of the user's clone, or an mbox, and a PR body.

The clone's working tree, index and current branch are never touched: the commits are made with a private index, and one
new branch name is all that changes. What is exported stands alone and does not mention this project.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sm120.integration.build.identity import Recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.git import isolated as without_user
from sm120.integration.common.git import of_the_user, run_git, words
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.apply import copy_touched
from sm120.integration.series.overlay import OverlayFile, load_overlay
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.pin import Pin
from sm120.integration.upstream.closure import Closure
from sm120.integration.upstream.field_table import new_fields, with_fields
from sm120.integration.upstream.probes import probe_modules
from sm120.integration.upstream.shared_modules import from_package
from sm120.integration.upstream.style import styled, styled_cpp


@dataclass(frozen=True)
class Exported:
    """Where the commits are and what they are."""

    branch: str
    base: str
    commits: list[str]
    subjects: list[str]


def export_onto(
    checkout: Checkout, recipe: Recipe, closure: Closure, clone: Path, ref: str = "HEAD", *, signoff: bool = False
) -> Exported:
    """Commit the closure and the patch, each as one commit with its test, on the new branch `SLUG` of `clone` at `ref`.

    Raises:
        Refusal: `export-clone` (no git clone, no identity), `export-ref` (unknown ref), `export-branch` (the branch
            exists), `export-conflict` (a hunk does not fit there); nothing is changed in the clone then.
    """
    branch = closure.patch.slug
    base, identity = check_clone(clone, ref, branch)
    # `NAME <EMAIL> seconds zone`: the declaration is the user's own, so only their identity signs, and only when asked.
    signed_by = identity.rsplit(" ", 2)[0] if signoff else ""
    with tempfile.TemporaryDirectory(prefix="sm120-export-") as name:
        index = Path(name) / "index"
        environment = {"GIT_INDEX_FILE": str(index)}
        _git(clone, "read-tree", base, environment=environment)
        commits, subjects, parent = [], [], base
        tests: set[str] = set()
        for patch, files in _shares(checkout, recipe, closure):
            for target, data in files:
                _add_file(clone, environment, recipe.series.pin.upstream_path(target), data, patch)
            _apply_cached(clone, environment, upstream_diff(recipe.series.pin, patch), patch)
            _append_fields(clone, environment, recipe.series.pin, patch)
            for target, text in upstream_tests(checkout, recipe.series.pin, patch):
                if target not in tests:  # tests of neighbours share modules
                    _add_file(clone, environment, target, text.encode(), patch)
                    tests.add(target)
            tree = _git(clone, "write-tree", environment=environment)
            message = commit_message(patch, signed_by)
            parent = _git(clone, "commit-tree", tree, "-p", parent, "-F", "-", stdin=message)
            commits.append(parent)
            subjects.append(message.splitlines()[0])
    _git(clone, "update-ref", f"refs/heads/{branch}", parent, "0" * 40)
    return Exported(branch, base, commits, subjects)


def check_clone(clone: Path, ref: str, branch: str) -> tuple[str, str]:
    """The commit that `ref` names in `clone` and who commits there; refuses like `export_onto`, before anything is made."""
    _git(clone, "rev-parse", "--git-dir", code="export-clone", what="is not a git clone")
    base = _git(clone, "rev-parse", "--verify", f"{ref}^{{commit}}", code="export-ref", what=f"has no commit {ref!r}")
    identity = _git(clone, "var", "GIT_AUTHOR_IDENT", code="export-clone", what="no user.name and user.email set")
    if "@" not in identity:
        raise Refusal("export-clone", "git has no identity to commit with", path=clone, fix="git config user.name …")
    if _quiet(clone, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"):
        raise Refusal("export-branch", f"has a branch {branch!r} already", path=clone, fix=f"git branch -D {branch}")
    return base, identity


def export_mbox(
    checkout: Checkout, recipe: Recipe, closure: Closure, pristine: Path, folder: Path, *, signoff: bool = False
) -> list[Path]:
    """Write the commits as `git am` takes them, made on the pinned release laid out as upstream has it.

    Raises:
        Refusal: `export-exists` when `folder` is no folder or not empty; `export-clone` when git has no identity.
    """
    check_folder(folder)
    with tempfile.TemporaryDirectory(prefix="sm120-export-") as name:
        clone = release_clone(recipe, pristine, closure.patches, Path(name) / "clone")
        made = export_onto(checkout, recipe, closure, clone, signoff=signoff)
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-signature", "--zero-commit", "--full-index"]
        # The commits are theirs already; how they mail other work (prefixes, attachments, footers) is no part of them.
        made_here = f"{made.base}..{made.branch}"
        _git(clone, "format-patch", *options, "-o", str(folder.absolute()), made_here, isolated=True)
    return sorted(folder.glob("*.patch"))


def check_folder(folder: Path) -> None:
    """Refuses like `export_mbox`, before anything is made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refusal("export-exists", "is not an empty folder", path=folder, fix="name a new folder")


def release_clone(recipe: Recipe, pristine: Path, patches: list[Patch], folder: Path) -> Path:
    """A git repository with the files that `patches` touch, where upstream keeps them."""
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet")
    pin = recipe.series.pin
    copy_touched(pristine, patches, folder, pin.upstream_path)
    if pin.field_table is not None:
        table = folder / pin.upstream_path(pin.field_table.file)
        table.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pristine / pin.field_table.file, table)
    _git(folder, "add", "--all", "--force")
    # No hook of theirs is meant for this commit, and nobody will see a signature of it.
    options = ["--quiet", "--allow-empty", "--no-verify", "--no-gpg-sign"]
    _git(folder, "commit", *options, "-m", f"release {recipe.series.pin.git_tag}")
    return folder


def commit_message(patch: Patch, signed_by: str = "") -> str:
    """Subject and description; the other header fields are ours and stay here."""
    subject = patch.subject.split("] ", 1)[1]  # upstream knows which project it is
    signature = f"\nSigned-off-by: {signed_by}\n" if signed_by else ""
    return f"{subject}\n\n{patch.description}\n{signature}"


def upstream_diff(pin: Pin, patch: Patch) -> str:
    """The patch's diff with every path where upstream has it."""

    def moved(match: re.Match[str]) -> str:
        return match[1] + pin.upstream_path(match[2])

    lines = []
    in_header = True
    for line in patch.diff.splitlines(keepends=True):
        if line.startswith("diff --git "):
            in_header = True
            line = re.sub(r"((?:^diff --git | )[ab]/)(\S+)", moved, line)
        elif line.startswith("@@ "):
            in_header = False
        elif in_header:
            line = re.sub(r"^((?:---|\+\+\+) [ab]/|rename (?:from|to) |copy (?:from|to) )(\S+)", moved, line)
        lines.append(line)
    return "".join(lines)


def upstream_tests(checkout: Checkout, pin: Pin, patch: Patch) -> list[tuple[str, str]]:
    """(path, text) of the patch's probe in upstream's own harness, then of the modules beside it that it imports."""
    path = checkout.root / patch.fields["Probe"]
    folder = pin.test_folder_for({file.path: file.added + file.removed for file in patch.files})
    shared = probe_modules(checkout, patch)[1:]
    names = [one.stem for one in shared]
    text = from_package(path.read_text(), names, pin.test_modules)
    registered = _after_imports(text, pin.test_registration) if pin.test_registration else text
    if pin.test_footer and "__main__" not in registered:
        registered = f"{registered.rstrip()}\n\n\n{pin.test_footer.strip()}\n"
    beside = pin.test_modules.folder if pin.test_modules else folder
    texts = {f"{folder}/{path.name}": registered}
    texts |= {f"{beside}/{one.name}": from_package(one.read_text(), names, pin.test_modules) for one in shared}
    return [(target, _as_upstream(pin, target, text)) for target, text in texts.items()]


def added_files(checkout: Checkout, recipe: Recipe, closure: Closure) -> list[str]:
    """Paths upstream of the files that the last commit adds beside its diff: the test first, then overlay files."""
    pin = recipe.series.pin
    overlay = _shares(checkout, recipe, closure)[-1][1]
    tests = [target for target, _ in upstream_tests(checkout, pin, closure.patch)]
    return tests + [pin.upstream_path(target) for target, _ in overlay]


def _as_upstream(pin: Pin, target: str, text: str) -> str:
    for wheel, upstream in pin.test_renames.items():
        text = re.sub(rf"\b{re.escape(wheel)}\b", upstream, text)
    return styled(pin.test_header + text, pin.python_style, target)


def _after_imports(text: str, addition: str) -> str:
    last = 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            last = node.end_lineno or last
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:last], addition.rstrip("\n") + "\n", *lines[last:]])


def _shares(checkout: Checkout, recipe: Recipe, closure: Closure) -> list[tuple[Patch, list[tuple[str, bytes]]]]:
    """Each patch with the overlay files that it is the first to need."""
    placed: set[str] = set()
    shares = []
    for patch in closure.patches:
        files = load_overlay(checkout.kernels, patch.kernels, recipe.series.project)
        new = [(file.target, overlay_bytes(checkout, recipe, file)) for file in files if file.target not in placed]
        placed.update(target for target, _ in new)
        shares.append((patch, new))
    return shares


def overlay_bytes(checkout: Checkout, recipe: Recipe, file: OverlayFile) -> bytes:
    """An overlay file as upstream would have it formatted."""
    data, pin = file.source.read_bytes(), recipe.series.pin
    if file.target.endswith(".py"):
        return styled(data.decode(), pin.python_style, file.target).encode()
    if pin.cpp_style and file.target.endswith((".cu", ".cuh", ".h", ".hpp", ".cpp")):
        return styled_cpp(data.decode(), pristine_of(checkout, recipe) / pin.cpp_style, file.target).encode()
    return data


def _add_file(clone: Path, environment: dict[str, str], target: str, data: bytes, patch: Patch) -> None:
    if _git(clone, "ls-files", "--cached", "--", target, environment=environment):
        raise Refusal("export-conflict", f"{target} exists there already", path=patch.path)
    blob = _git(clone, "hash-object", "-w", "--stdin", stdin=data)
    _git(clone, "update-index", "--add", "--cacheinfo", f"100644,{blob},{target}", environment=environment)


def _append_fields(clone: Path, environment: dict[str, str], pin: Pin, patch: Patch) -> None:
    names = new_fields(pin, patch)
    if not names or pin.field_table is None:
        return
    target = pin.upstream_path(pin.field_table.file)
    blob = _git(
        clone, "rev-parse", f":{target}", environment=environment, code="export-conflict", what=f"lacks {target}"
    )
    text = _run(clone, ["cat-file", "blob", blob]).stdout.decode()  # whole: the last line end counts
    blob = _git(clone, "hash-object", "-w", "--stdin", stdin=with_fields(text, names, patch))
    _git(clone, "update-index", "--cacheinfo", f"100644,{blob},{target}", environment=environment)


def _apply_cached(clone: Path, environment: dict[str, str], diff: str, patch: Patch) -> None:
    result = _run(
        clone,
        ["apply", "--cached", "-"],
        environment=environment,
        stdin=diff.encode(errors="surrogateescape"),
    )
    if result.returncode != 0:
        failed = [line.removeprefix("error: ") for line in words(result).splitlines() if line.startswith("error: ")]
        raise Refusal(
            "export-conflict",
            f"{patch.slug} does not fit there: {'; '.join(failed[:3]) or 'refused'}",
            path=patch.path,
            fix=f"export onto the release the patch is made for ({patch.project}'s pinned tag), then rebase with git",
        )


def _git(
    clone: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    isolated: bool = False,
    stdin: str | bytes | None = None,
    code: str = "export-git",
    what: str = "",
) -> str:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    result = _run(clone, list(arguments), environment=environment, isolated=isolated, stdin=data)
    if result.returncode != 0:
        said = words(result).splitlines()
        raise Refusal(code, what or f"git {arguments[0]}: {said[-1] if said else 'failed'}", path=clone)
    return result.stdout.decode(errors="surrogateescape").strip()


def _quiet(clone: Path, *arguments: str) -> bool:
    return _run(clone, list(arguments)).returncode == 0


def _run(
    clone: Path,
    arguments: list[str],
    *,
    environment: dict[str, str] | None = None,
    isolated: bool = False,
    stdin: bytes | None = None,
) -> subprocess.CompletedProcess[bytes]:
    # The user's own configuration counts here, identity and signing included; only what would change bytes is fixed.
    base = without_user() if isolated else of_the_user()
    if not clone.is_dir():
        raise Refusal("export-clone", "no such folder", path=clone)
    return run_git(clone, *arguments, environment=base | (environment or {}), stdin=stdin or b"")
