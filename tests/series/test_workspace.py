"""A series goes out as commits and comes back as the same bytes, or nothing is written."""

from __future__ import annotations

import os
import subprocess

import pytest

from sm120.integration.series.commit_message import message_of
from sm120.integration.series.patch_file import parse_patch

from ..mini_checkout import (
    HOOK,
    PRISTINE,
    add_fuzzy_patch,
    add_kernel,
)


def test_edit_and_save_give_back_the_same_bytes(built, tmp_path):
    add_kernel(built)
    built.patch("hook", {"alpha/core.py": HOOK, "alpha/tool.sh": None}, Kernels="packing", Requires="first-change")
    assert built.sm120("series", "refresh").returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    hostile = tmp_path / "gitconfig"
    hostile.write_text("[core]\nautocrlf = true\n[diff]\nnoprefix = true\nmnemonicPrefix = true\ncontext = 9\n")
    work = tmp_path / "work"
    result = built.sm120("series", "edit", "alpha", str(work), GIT_CONFIG_GLOBAL=str(hostile))
    assert result.returncode == 0, result.stderr
    result = built.sm120("series", "save", "alpha", str(work), GIT_CONFIG_GLOBAL=str(hostile))
    assert result.returncode == 0, result.stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


def test_save_names_the_files_that_it_deletes(built, tmp_path):
    built.patch("dropped", {"alpha/tool.sh": PRISTINE["alpha/tool.sh"] + "echo more\n"})
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    subprocess.run(["git", "reset", "--quiet", "--hard", "HEAD^"], cwd=work, check=True)
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.returncode == 0 and f"deleted, as its commit is gone: {built.folder}/dropped.patch\n" in result.stdout
    assert not (built.folder / "dropped.patch").exists()


def test_save_refuses_a_commit_without_a_name_and_a_dirty_folder(built, tmp_path):
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    (work / "alpha/core.py").write_text("changed = True\n")
    assert "[workspace-dirty]" in built.sm120("series", "save", "alpha", str(work)).stderr
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "no slug here"]
    subprocess.run(commit, cwd=work, check=True)
    assert "[workspace-commit]" in built.sm120("series", "save", "alpha", str(work)).stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


def test_save_refuses_a_rebase_that_is_not_finished(built, tmp_path):
    """HEAD is then before the patches that are still to be picked, and each of those would be deleted."""
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    rebase = ["git", "-c", "sequence.editor=sed -i 1ibreak", "rebase", "--quiet", "--interactive", "sm120-base"]
    subprocess.run(rebase, cwd=work, check=True)
    assert "[workspace-rebase]" in built.sm120("series", "save", "alpha", str(work)).stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


@pytest.mark.parametrize("checkout", [["sm120-base"], ["-b", "trial", "sm120-base"]], ids=["detached", "branch"])
def test_save_refuses_what_is_not_the_branch_of_the_series(built, tmp_path, checkout):
    """There the patches that the branch goes on with would count as gone."""
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    subprocess.run(["git", "checkout", "--quiet", *checkout], cwd=work, check=True)
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.returncode == 2 and "[workspace-branch]" in result.stderr and "git checkout series" in result.stderr
    subprocess.run(["git", "checkout", "--quiet", "series"], cwd=work, check=True)
    subprocess.run(["git", "reset", "--quiet", "--hard", "sm120-base"], cwd=work, check=True)
    assert "[workspace-empty]" in built.sm120("series", "save", "alpha", str(work)).stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before


def test_save_keeps_the_patches_that_edit_did_not_come_to(built, tmp_path):
    """`edit` stops at a patch that does not apply; mending that one must not cost those behind it."""
    add_fuzzy_patch(built)
    base = PRISTINE["alpha/tool.sh"]
    built.patch("last", {"alpha/tool.sh": base + "echo more\n"})
    last = (built.folder / "last.patch").read_bytes()
    work = tmp_path / "work"
    assert "[patch-conflict]" in built.sm120("series", "edit", "alpha", str(work)).stderr
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    result = built.sm120("series", "save", "alpha", str(work))
    assert (result.returncode, result.stdout.split()) == (0, ["first-change", "needs-fuzz", "last"]), result.stderr
    assert "kept unseen" in result.stderr and "no commit of them: needs-fuzz, last\n" in result.stderr
    assert f"delete {built.folder}/SLUG.patch and its line in {built.folder / 'series'}\n" in result.stderr
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before, "nothing was mended"

    core = work / "alpha/core.py"
    core.write_text(core.read_text().replace("line_20 = 20\n", "line_20 = 2020\n"))
    message = message_of(parse_patch(built.folder / "needs-fuzz.patch"))
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--all", "--message", message]
    subprocess.run(commit, cwd=work, check=True)
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.stdout.split() == ["first-change", "needs-fuzz", "last"], result.stderr
    assert "no commit of them: last\n" in result.stderr
    assert (built.folder / "last.patch").read_bytes() == last
    assert built.build().returncode == 0

    # What the message says to do drops it, and nothing is left to say.
    (built.folder / "last.patch").unlink()
    series = built.folder / "series"
    series.write_text(series.read_text().replace("last.patch\n", ""))
    result = built.sm120("series", "save", "alpha", str(work))
    assert result.stdout.split() == ["first-change", "needs-fuzz"] and "unseen" not in result.stderr
    assert built.build().returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a filesystem needs root")
def test_save_from_another_file_system(built, tmp_path):
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    mount = tmp_path / "memory"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mount], check=True)
    try:
        work = mount / "work"
        assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
        result = built.sm120("series", "save", "alpha", str(work))
        assert (result.returncode, result.stdout) == (0, "first-change\n"), result.stderr
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before
    assert [path.name for path in built.checkout.patches.iterdir()] == ["alpha"], "nothing is left aside"


def test_a_description_that_ends_a_line_like_the_separator_stays_whole(built, tmp_path):
    """Only the line `---` ends a header; what `refresh` and `save` cut off there was lost."""
    text = "a table\n | old | new |\n -------\n behind it"
    path = built.patch("drawn", {"alpha/tool.sh": PRISTINE["alpha/tool.sh"] + "echo more\n"}, Description=text)
    path.write_text(path.read_text().replace("@@ -1,2 +1,3 @@", "@@ -1,2 +1,3 @@ main"))
    header = parse_patch(path).header
    assert header.endswith("Evidence: cpu\n") and path.read_text().startswith(header + "---\ndiff --git ")
    result = built.sm120("series", "refresh")
    assert (result.returncode, result.stdout) == (0, "rewritten: drawn\n"), result.stderr
    assert parse_patch(path).header == header
    before = path.read_bytes()
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    assert built.sm120("series", "save", "alpha", str(work)).returncode == 0
    assert path.read_bytes() == before
