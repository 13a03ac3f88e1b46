"""Exporting onto a clone adds one branch and nothing else; a bad input adds nothing at all."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream.closure import find_closure
from sm120.integration.upstream.export import export_mbox, export_onto

from .. import mini_checkout as foundation

IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A Contributor"), ("EMAIL", "contributor@example.org"))
}
CORE = foundation.PRISTINE["alpha/core.py"]


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Only what a test sets counts, not the machine's own configuration."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def queue(mini):
    """Two patches of which the second needs the first, their probes, and the unpacked release."""
    first = CORE.replace("line_5 = 5\n", "line_5 = 55\n")
    mini.patch("first", {"alpha/core.py": first})
    base = foundation.PRISTINE | {"alpha/core.py": first}
    second = first.replace("line_6 = 6\n", "line_6 = 66\n")
    mini.patch("second", {"alpha/core.py": second}, base=base, Requires="first")
    probes = mini.checkout.root / "tests" / "probes" / "alpha"
    probes.mkdir(parents=True)
    for slug in ("first", "second"):
        (probes / f"test_{slug}.py").write_text("import alpha\n\n\ndef test_it():\n    assert alpha\n")
    for name, text in foundation.PRISTINE.items():
        path = mini.pristine / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return mini


@pytest.fixture
def clone(tmp_path):
    """A user's clone with upstream's layout, a tag, and work in progress: staged, changed and untracked."""
    folder = tmp_path / "clone"
    for name, text in foundation.PRISTINE.items():
        path = folder / "python" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder.parent, "init", "--quiet", "--initial-branch=main", str(folder))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "release")
    git(folder, "tag", "v1.0")
    (folder / "python" / "alpha" / "core.py").write_text("rewritten = True\n")
    git(folder, "commit", "--quiet", "--all", "-m", "rewrite core")
    git(folder, "tag", "rewritten")
    git(folder, "checkout", "--quiet", "-B", "main", "v1.0")
    (folder / "python" / "alpha" / "tool.sh").write_text("#!/bin/sh\necho staged\n")
    git(folder, "add", "--all")
    (folder / "python" / "alpha" / "core.py").write_text(CORE + "mine = True\n")
    (folder / "notes.txt").write_text("untracked\n")
    return folder


def state(clone: Path, *, without: str = "") -> dict[str, object]:
    """Everything of the user's that an export could spoil."""
    refs = [line for line in git(clone, "for-each-ref").splitlines() if not line.endswith(f"refs/heads/{without}")]
    files = {
        str(path.relative_to(clone)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(clone.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(clone).parts
    }
    inside = {name: (clone / ".git" / name).read_bytes() for name in ("HEAD", "index", "config")}
    return {"refs": refs, "files": files, "inside": inside}


def closure_of(queue, slug: str = "second"):
    recipe = load_recipe(queue.checkout, "alpha")
    return recipe, find_closure(queue.checkout, recipe.series, queue.pristine, slug)


def test_a_users_git_can_neither_bend_a_patch_nor_lead_elsewhere(queue, clone, tmp_path, monkeypatch):
    """White space that is ignored is fuzz; and a variable of git's hooks names another repository than the clone."""
    (tmp_path / "gitconfig").write_text("[apply]\n\tignoreWhitespace = change\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    recipe, closure = closure_of(queue)
    git(clone, "stash", "--quiet", "--include-untracked")
    core = clone / "python" / "alpha" / "core.py"
    core.write_text(core.read_text().replace("line_4 = 4\n", "line_4  =  4\n"))
    git(clone, "commit", "--quiet", "--all", "-m", "spaces")
    with pytest.raises(Refusal, match=r"\[export-conflict\]"):
        export_onto(queue.checkout, recipe, closure, clone)

    git(tmp_path, "init", "--quiet", "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere" / ".git"))
    export_onto(queue.checkout, recipe, closure, clone, "v1.0")
    monkeypatch.delenv("GIT_DIR")
    assert git(clone, "branch", "--list", "second").strip() == "second"


def test_how_a_user_mails_is_no_part_of_what_is_exported(queue, tmp_path, monkeypatch):
    recipe, closure = closure_of(queue)
    plain = export_mbox(queue.checkout, recipe, closure, queue.pristine, tmp_path / "plain")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    (tmp_path / "gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n[format]\n\tsignOff = true\n\tattach = x\n\tsuffix = .txt\n"
        "[diff]\n\tnoprefix = true\n\tcontext = 9\n[commit]\n\tgpgSign = true\n[user]\n\tsigningKey = none\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_DATE", "2026-11-29T00:00:00Z")
    mailed = export_mbox(queue.checkout, recipe, closure, queue.pristine, tmp_path / "mailed")
    assert [path.name for path in mailed] == [path.name for path in plain]
    for one, other in zip(plain, mailed, strict=True):
        text, expected = (re.sub(r"(?m)^Date: .*$", "", path.read_text()) for path in (other, one))
        assert text == expected


@pytest.mark.parametrize("detached", [False, True], ids=["on-a-branch", "detached"])
def test_a_clone_with_work_in_progress_gains_one_branch(queue, clone, detached):
    if detached:
        git(clone, "checkout", "--quiet", "--detach")
    before = state(clone)
    recipe, closure = closure_of(queue)
    made = export_onto(queue.checkout, recipe, closure, clone, "v1.0")
    assert state(clone, without="second") == before
    assert git(clone, "log", "--format=%s", "v1.0..second").splitlines() == [
        "core: change second",
        "core: change first",
    ]
    assert git(clone, "log", "--format=%an <%ae>", "-1", "second").strip() == "A Contributor <contributor@example.org>"
    text = git(clone, "show", "second:python/alpha/core.py")
    assert "line_5 = 55" in text and "line_6 = 66" in text and "mine" not in text
    assert git(clone, "show", "--format=", "--name-only", made.commits[-1]).split() == [
        "python/alpha/core.py",
        "tests/test_second.py",
    ]


@pytest.mark.parametrize(
    ("ref", "prepare", "code", "mentions"),
    [
        ("rewritten", [], "export-conflict", "core.py"),
        ("v9.9", [], "export-ref", "v9.9"),
        ("v1.0", ["branch", "second"], "export-branch", "second"),
    ],
    ids=["nothing-applies", "unknown-ref", "branch-exists"],
)
def test_a_refusal_changes_nothing(queue, clone, ref, prepare, code, mentions):
    if prepare:
        git(clone, *prepare)
    before = state(clone)
    recipe, closure = closure_of(queue)
    with pytest.raises(Refusal) as refused:
        export_onto(queue.checkout, recipe, closure, clone, ref)
    assert refused.value.code == code and mentions in str(refused.value)
    assert state(clone) == before


def test_without_an_identity_nothing_is_committed(queue, clone, monkeypatch):
    for role in ("AUTHOR", "COMMITTER"):
        for what in ("NAME", "EMAIL"):
            monkeypatch.delenv(f"GIT_{role}_{what}")
    git(clone, "config", "user.useConfigOnly", "true")
    before = state(clone)
    recipe, closure = closure_of(queue)
    with pytest.raises(Refusal, match=r"\[export-clone\].*user\.name"):
        export_onto(queue.checkout, recipe, closure, clone, "v1.0")
    assert state(clone) == before


def test_what_is_no_clone_is_refused(queue, tmp_path):
    recipe, closure = closure_of(queue)
    with pytest.raises(Refusal, match=r"\[export-clone\].*no such folder"):
        export_onto(queue.checkout, recipe, closure, tmp_path / "nowhere")
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(Refusal, match=r"\[export-clone\].*not a git clone"):
        export_onto(queue.checkout, recipe, closure, plain)
    assert list(plain.iterdir()) == []


def test_a_folder_with_files_is_no_place_for_an_mbox(queue, tmp_path):
    recipe, closure = closure_of(queue)
    (tmp_path / "mbox").mkdir()
    (tmp_path / "mbox" / "mine.txt").write_text("mine")
    with pytest.raises(Refusal, match=r"\[export-exists\]"):
        export_mbox(queue.checkout, recipe, closure, queue.pristine, tmp_path / "mbox")
    assert [path.name for path in (tmp_path / "mbox").iterdir()] == ["mine.txt"]


def test_a_signature_is_added_only_when_asked_for(queue, clone):
    recipe, closure = closure_of(queue)
    export_onto(queue.checkout, recipe, closure, clone, "v1.0")
    assert "Signed-off-by" not in git(clone, "log", "--format=%B", "v1.0..second")
    git(clone, "branch", "--quiet", "-D", "second")
    export_onto(queue.checkout, recipe, closure, clone, "v1.0", signoff=True)
    signed = git(clone, "log", "--format=%(trailers:key=Signed-off-by)", "v1.0..second").split("\n")
    assert [line for line in signed if line] == ["Signed-off-by: A Contributor <contributor@example.org>"] * 2


def test_an_unknown_slug_names_those_there_are(queue, clone):
    before = state(clone)
    result = queue.sm120("export", "nonsense", "--onto", f"{clone}@v1.0")
    assert result.returncode == 2 and "[unknown-slug]" in result.stderr and "first, second" in result.stderr
    assert state(clone) == before


def test_without_evidence_nothing_is_made_and_the_next_try_says_the_same(queue, clone, tmp_path):
    """No runtime is installed here, so no probe can run."""
    before = state(clone)
    tries = [queue.sm120("export", "second", "--onto", f"{clone}@v1.0", **IDENTITY) for _ in range(2)]
    assert tries[0].returncode == 2 and tries[0].stderr == tries[1].stderr
    assert state(clone) == before
    mailed = [queue.sm120("export", "second", "--mbox", str(tmp_path / "mbox"), **IDENTITY) for _ in range(2)]
    assert mailed[0].returncode == 2 and mailed[0].stderr == mailed[1].stderr == tries[0].stderr
    assert not (tmp_path / "mbox").exists()
    # What is wrong with the target is said at once, not after minutes of probes.
    git(clone, "branch", "second", "v1.0")
    assert "[export-branch]" in queue.sm120("export", "second", "--onto", f"{clone}@v1.0", **IDENTITY).stderr


def test_the_text_without_runs_is_written_where_it_is_asked_for(queue, clone, tmp_path):
    """No runtime is installed here: the commits and a text that claims no run can still be had."""
    text = tmp_path / "pull.md"
    result = queue.sm120(
        "export", "second", "--onto", f"{clone}@v1.0", "--no-evidence", "--body", str(text), **IDENTITY
    )
    assert result.returncode == 0, result.stderr
    assert "`tests/test_second.py` is the test of this change" in text.read_text()
    assert "failed" not in text.read_text() and "core: change first" in text.read_text()
    git(clone, "branch", "-D", "second")
    silent = queue.sm120("export", "second", "--onto", f"{clone}@v1.0", "--no-evidence", **IDENTITY)
    assert silent.returncode == 0 and "PR text" not in silent.stdout
