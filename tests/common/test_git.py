"""git answers alike whatever its user has configured, and a full disk is called so."""

from __future__ import annotations

import subprocess

import pytest

from sm120.integration.common import git
from sm120.integration.common.refusal import Refusal


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository under a user who has configured everything that would change an answer."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = Somebody\nemail = somebody@example.org\n[core]\nautocrlf = true\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "another-index"))
    folder = tmp_path / "repository"
    folder.mkdir()
    git.git(folder, "init", "--quiet")
    (folder / "file").write_text("one\r\n")
    git.git(folder, "add", "file")
    git.git(folder, "commit", "--quiet", "--message", "one")
    return folder


def test_a_commit_depends_on_nothing_of_the_machine(repository):
    assert git.git(repository, "log", "-1", "--format=%an %ae %aI") == (
        "sm120-runtime patches@localhost 2000-01-01T00:00:00+00:00\n"
    )
    assert git.git(repository, "show", "HEAD:file") == "one\r\n", "line ends stay"
    assert not (repository.parent / "another-index").exists()


def test_the_users_identity_counts_where_it_is_asked_for(repository):
    said = git.run_git(repository, "var", "GIT_AUTHOR_IDENT", environment=git.of_the_user())
    assert said.stdout.startswith(b"Somebody <somebody@example.org>")


def test_a_failure_is_refused_with_gits_own_words(repository):
    with pytest.raises(Refusal, match=r"\[git-failed\].*git show: .*no-such-thing"):
        git.git(repository, "show", "no-such-thing")
    assert git.run_git(repository, "show", "no-such-thing").returncode == 128, "and only answered where it may be"


def test_a_full_disk_is_called_so(repository, monkeypatch):
    full = subprocess.CompletedProcess([], 128, b"", b"fatal: write error: No space left on device\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: full)
    with pytest.raises(Refusal, match=r"\[disk-full\] .*repository: no space left while git add works"):
        git.run_git(repository, "--literal-pathspecs", "add", "file")


def test_bytes_that_are_no_text_come_back(repository):
    (repository / "latin").write_bytes(b"\xe9\n")
    git.git(repository, "add", "latin")
    assert git.git(repository, "show", ":latin").encode(errors="surrogateescape") == b"\xe9\n"
