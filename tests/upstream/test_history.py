"""A change that upstream took in other words is found in the history of a clone, and nothing else is."""

from __future__ import annotations

import subprocess

import pytest

from sm120.integration.common.git import isolated
from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream import bump
from sm120.integration.upstream.matrix import make_matrix
from sm120.integration.upstream.releases import find_release

from .. import mini_checkout as foundation
from .test_bump import edit, list_release

PATH = "alpha/core.py"
CORE = foundation.PRISTINE[PATH]
OURS = "".join(f"value_{n} = compute({n}, 'base', scale=factor_{n})\n" for n in range(12))
# Four of twelve lines in other words, and another name where the patch has one.
THEIRS = "".join(
    f"value_{n} = {'evaluate_block' if n % 3 == 0 else 'compute'}({n}, 'base', scale=factor_{n})\n" for n in range(12)
)
MINE = CORE.replace("line_20 = 20\n", "line_20 = 20\n" + OURS)
UPSTREAM = edit(CORE, line_18="eighteen()").replace("line_20 = 20\n", "line_20 = 20\n" + THEIRS)


class Clone:
    """Upstream's repository, with a commit a step."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments):
        identity = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return subprocess.run(
            ["git", *arguments], cwd=self.folder, env=isolated() | identity, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, text: str, subject: str, tag: str = "", path: str = PATH) -> str:
        target = self.folder / "python" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        if tag:
            self.git("tag", tag)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def upstream(mini, monkeypatch, tmp_path):
    """One patch on alpha 1.0, a clone at v1.0."""
    for name, value in mini.environment.items():
        monkeypatch.setenv(name, value)
    mini.patch("mine", {PATH: MINE})
    probe = mini.checkout.root / "tests" / "probes" / "alpha" / "test_mine.py"
    probe.parent.mkdir(parents=True)
    probe.write_text("def test_mine():\n    assert True\n")
    list_release(mini, "1.0", foundation.PRISTINE)
    mini.clone = Clone(tmp_path / "clone")
    mini.clone.commit(CORE, "start", "v1.0")
    mini.clone.commit(edit(CORE, line_18="eighteen()"), "core: count to eighteen")
    return mini


def outcome_of(mini, text: str, **options):
    list_release(mini, "1.1", foundation.PRISTINE | {PATH: text})
    release = find_release(mini.folder, "1.1")
    return bump.plan_bump(mini.checkout, "alpha", release, history=mini.clone.folder, **options).outcomes[0]


def test_a_merge_in_other_words_is_found_and_names_its_commit(upstream):
    commit = upstream.clone.commit(UPSTREAM, "core: scale the values (#7)")
    upstream.clone.commit(UPSTREAM + "more = 1\n", "core: more", "v1.1")
    before = upstream.clone.git("count-objects", "-v")
    outcome = outcome_of(upstream, UPSTREAM + "more = 1\n")
    assert outcome.kind == "merged" and not outcome.exact, outcome
    assert commit[:12] in outcome.why and "core: scale the values (#7)" in outcome.why
    assert upstream.clone.git("count-objects", "-v") == before, "the clone is only read"
    cells = make_matrix(upstream.checkout, "alpha", history=upstream.clone.folder).rows[0].cells
    assert [cell.word for cell in cells.values()] == ["applies", "merged"]
    word = make_matrix(upstream.checkout, "alpha").rows[0].cells["1.1"].word
    assert word != "merged", "without a clone its text is not enough"


def test_a_history_without_it_finds_nothing(upstream):
    other = "".join(f"table_{n} = lookup(rows[{n}], default=None)\n" for n in range(12))
    text = edit(CORE, line_18="eighteen()").replace("line_20 = 20\n", "line_20 = 20\n" + other)
    upstream.clone.commit(text, "core: look rows up", "v1.1")
    outcome = outcome_of(upstream, text)
    assert outcome.kind != "merged" and any("no commit since the pin is like it" in rung for rung in outcome.rungs)


def test_what_was_taken_back_is_not_merged(upstream):
    commit = upstream.clone.commit(UPSTREAM, "core: scale the values (#7)")
    text = edit(CORE, line_18="eighteen()", line_19="nineteen()", line_21="twenty_one()")
    back = upstream.clone.commit(text, f'Revert "core: scale the values"\n\nThis reverts commit {commit}.', "v1.1")
    outcome = outcome_of(upstream, text)
    assert outcome.kind != "merged" and any(f"{back[:12]} took it back" in rung for rung in outcome.rungs), outcome


def test_what_is_no_clone_or_lacks_the_tag_is_refused(upstream, tmp_path):
    with pytest.raises(Refusal, match=r"\[history-clone\].*no git repository"):
        make_matrix(upstream.checkout, "alpha", history=tmp_path / "nowhere")
    with pytest.raises(Refusal, match=r"\[history-clone\].*has no tag v1.1"):
        outcome_of(upstream, UPSTREAM)
    result = upstream.sm120("matrix", "--history", str(upstream.clone.folder))
    assert result.returncode == 2 and "[history-clone]" in result.stderr and "name the project" in result.stderr
