"""A patch's header is a commit message that git shows and rebases like any other."""

from __future__ import annotations

import subprocess

from ..mini_checkout import (
    PRISTINE,
)


def test_a_commit_reads_and_rebases_like_any_other(built, tmp_path):
    text = "why it is so,\n in two lines\n .\n   indented\n #1 is a number"
    built.patch("worded", {"alpha/tool.sh": PRISTINE["alpha/tool.sh"] + "echo more\n"}, Description=text)
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    work = tmp_path / "work"
    assert built.sm120("series", "edit", "alpha", str(work)).returncode == 0
    log = ["git", "log", "-1", "--format=%s%n%b%n%(trailers:key=Slug,valueonly)"]
    subject, *body = subprocess.run(log, cwd=work, capture_output=True, text=True, check=True).stdout.splitlines()
    assert subject == "core: change worded" and body[:4] == ["why it is so,", "in two lines", "", "  indented"]
    assert "Slug: worded" in body and "worded" in body, "git takes the last lines for trailers"
    amend = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--amend", "--quiet", "--no-edit"]
    subprocess.run([*amend, "--cleanup=whitespace"], cwd=work, check=True)
    assert built.sm120("series", "save", "alpha", str(work)).returncode == 0
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before
