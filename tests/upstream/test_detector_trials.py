"""The trials of the detector count what they say, and can find it wrong."""

from __future__ import annotations

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream import detector_trials
from sm120.integration.upstream.detector_trials import (
    LeftOut,
    Reworded,
    in_other_words,
    left_out,
    left_out_summary,
    pick_commits,
    reworded_commits,
    reworded_summary,
)

from .test_history import CORE, PATH, Clone, edit

OURS = "".join(f"value_{n} = compute({n}, 'base')\n" for n in range(12))


@pytest.fixture(autouse=True)
def wheels_of_the_test(mini, monkeypatch):
    for name, value in mini.environment.items():
        monkeypatch.setenv(name, value)


def test_each_hunk_is_left_out_once_and_each_patch_is_tried_whole(mini):
    mini.patch("wide", {PATH: edit(CORE, line_3="three_three()", line_30="thirty_thirty()"), "alpha/new.py": OURS})
    mini.patch("small", {PATH: edit(CORE, line_20="twenty()")})
    trials = list(left_out(mini.checkout, "alpha"))
    assert [(trial.slug, trial.hunk) for trial in trials] == [
        ("wide", ""),
        ("wide", f"{PATH}:1"),
        ("wide", f"{PATH}:2"),
        ("wide", "alpha/new.py:1"),
        ("small", ""),
    ]
    assert all(trial.right for trial in trials), trials
    assert "| one hunk left out: partly, with that hunk | 3 of 3 (100.0 %) |" in left_out_summary(trials)


def test_a_rule_that_calls_every_half_merged_is_found_out(mini, monkeypatch):
    mini.patch("wide", {PATH: edit(CORE, line_3="three_three()", line_30="thirty_thirty()")})
    monkeypatch.setattr(detector_trials, "decide", lambda verdicts: ("merged", ""))
    trials = list(left_out(mini.checkout, "alpha"))
    assert [trial.right for trial in trials] == [True, False, False]
    assert "0 of 2 (0.0 %)" in left_out_summary(trials)


def test_the_wrong_hunk_is_not_right():
    assert LeftOut("a", "f.py:2", "partly", "f.py:2").right
    assert not LeftOut("a", "f.py:2", "partly", "f.py:1").right


@pytest.mark.parametrize(("share", "changed"), [(0, 0), (10, 1), (50, 6), (100, 12)])
def test_a_share_of_the_added_lines_is_in_other_words(share, changed):
    before, after = CORE.encode(), (CORE + OURS).encode()
    ours = in_other_words(before, after, share)
    pairs = list(zip(after.splitlines(), ours.splitlines(), strict=True))
    assert sum(one != other for one, other in pairs) == changed
    assert ours.startswith(before) and in_other_words(before, None, share) is None


@pytest.fixture
def clone(tmp_path):
    clone = Clone(tmp_path / "clone")
    clone.commit(CORE, "base", "v1.0")
    clone.commit(edit(CORE, line_3="three()"), "too small")
    clone.commit("a text\n" * 20, "no source", path="notes.md")
    clone.commit(OURS, "a new file", path="alpha/new.py")
    wanted = edit(CORE, line_3="three()").replace("line_20 = 20\n", "line_20 = 20\n" + OURS)
    clone.wanted = clone.commit(wanted, "the one")
    clone.commit(edit(wanted, line_30="thirty()"), "later", "v1.1")
    return clone


def test_a_commit_of_the_clone_is_found_in_other_words_and_not_before_it(mini, clone):
    assert pick_commits(clone.folder, "v1.0", "v1.1", 9) == [clone.wanted]
    trials = list(reworded_commits(mini.checkout, "alpha", clone.folder, "1.0..1.1", 9))
    assert [trial.share for trial in trials] == list(detector_trials.SHARES)
    assert all(trial.found == clone.wanted and not trial.control for trial in trials), trials
    assert "| found, with the right commit | 1 of 1 |" in reworded_summary(trials)


def test_what_is_not_found_or_found_before_is_counted():
    trials = [Reworded("a", share, "" if share == 50 else "a", "b" if share == 10 else "") for share in (0, 10, 50)]
    found, control = reworded_summary(trials).splitlines()[2:]
    assert found.endswith("| 1 of 1 | 1 of 1 | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 1 |")
    assert control.endswith("| 0 of 1 | 1 of 1 | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 1 |")


@pytest.mark.parametrize(
    ("between", "code"), [("1.0", "detector-between"), ("..1.1", "detector-between"), ("1.0..9.9", "history-clone")]
)
def test_releases_that_are_not_there_are_refused(mini, clone, between, code):
    with pytest.raises(Refusal, match=code):
        list(reworded_commits(mini.checkout, "alpha", clone.folder, between, 9))


def test_the_command_refuses_two_trials_at_once_and_a_clone_of_no_project(mini, clone):
    both = mini.sm120("detector", "--left-out", "--reworded", str(clone.folder))
    assert both.returncode == 2 and "[detector-trial]" in both.stderr
    none = mini.sm120("detector", "--reworded", str(clone.folder), "--between", "1.0..1.1")
    assert none.returncode == 2 and "[history-clone]" in none.stderr
