"""Each rung by itself: what it must see, and what must not fool it."""

from __future__ import annotations

import hashlib

import pytest

from sm120.integration.upstream.detector import as_change, measure, pick_changes, reworded, summary
from sm120.integration.upstream.ladder import Change, along_history, climb

from .conftest import foundation

PATH = "alpha/core.py"
OLD = foundation.PRISTINE[PATH].encode()
NEW = OLD.replace(b"line_5 = 5\n", b"line_5 = max(5, 0)\nextra_5 = line_5\nother_5 = extra_5\n")
CHANGE = as_change(PATH, OLD, NEW)


def rungs(verdict) -> dict[str, bool | None]:
    return {rung.name: rung.holds for rung in verdict.rungs}


def test_on_its_own_base_it_applies_and_nothing_else_holds():
    verdict = climb(CHANGE, {PATH: OLD})
    assert not verdict.merged
    assert rungs(verdict) == {"forward": True, "reverse": False, "reverse 3-way": False, "added lines": False}


def test_taken_as_sent_is_merged():
    verdict = climb(CHANGE, {PATH: NEW})
    assert verdict.merged and verdict.why == "it applies in reverse, exactly"
    assert verdict.failed_at == f"{PATH}:1"


def test_taken_and_moved_on_is_merged():
    now = NEW.replace(b"line_4 = 4\n", b"line_4 = four\n")
    verdict = climb(CHANGE, {PATH: now})
    assert verdict.merged and not verdict.rung("reverse").holds and verdict.rung("added lines").holds


def test_a_clean_merge_that_changes_nothing_is_no_evidence():
    # Upstream removed the whole neighbourhood: undoing the change merges to a no-op or conflicts, and is not "merged".
    for now in (OLD.replace(b"line_4 = 4\n", b"four = 4\n"), b"rewritten = True\n" * 30):
        verdict = climb(CHANGE, {PATH: now})
        assert not verdict.merged and not verdict.rung("reverse 3-way").holds


def test_lines_that_were_there_before_do_not_count():
    lines = b"".join(b"return result\n" for _ in range(4))
    before = b"def f():\n" + lines + b"# middle of the file\n" * 9
    change = as_change(PATH, before, before + lines)
    assert climb(change, {PATH: before.replace(b"middle", b"centre")}).rung("added lines").holds is not True


def test_a_removal_proves_nothing_where_the_code_never_was():
    change = as_change(PATH, NEW, NEW.replace(b"extra_5 = line_5\n", b"").replace(b"other_5 = extra_5\n", b""))
    assert not climb(change, {}).merged
    assert not climb(change, {PATH: b"another_file = True\n" * 20}).merged


def test_an_absent_file_is_named():
    assert climb(CHANGE, {}).failed_at == f"{PATH}:gone"
    created = Change(
        "diff --git a/n.py b/n.py\nnew file mode 100644\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+new_line = 1\n",
        {"n.py": None},
        {"n.py": b"new_line = 1\n"},
    )
    assert climb(created, {}).rung("forward").holds
    assert climb(created, {"n.py": b"theirs\n"}).failed_at == "n.py:exists"
    assert climb(created, {"n.py": b"new_line = 1\n"}).merged


def test_history_remembers_what_was_taken_until_it_applies_again():
    taken, gone_on = climb(CHANGE, {PATH: NEW}), climb(CHANGE, {PATH: b"rewritten = True\n" * 30})
    back = climb(CHANGE, {PATH: OLD})
    assert along_history([taken, gone_on]) == (True, "an earlier release took it, and its code has moved on since")
    assert not along_history([gone_on])[0]
    assert not along_history([taken, back])[0]


@pytest.fixture
def three_releases(mini, monkeypatch):
    """1.1 takes two changes; 1.2 rewrites one of them."""
    for name, value in mini.environment.items():
        monkeypatch.setenv(name, value)
    one = dict(foundation.PRISTINE)
    body = "".join(f"value_{n} = compute({n})\n" for n in range(12))
    two = one | {PATH: NEW.decode().replace("line_30 = 30\n", "line_30 = 30\n" + body)}
    three = two | {PATH: two[PATH].replace("compute(", "calculate(")}
    text = ""
    for version, files in (("1.0", one), ("1.1", two), ("1.2", three)):
        if version != "1.0":
            foundation.make_wheel(mini.releases, "alpha", version, files)
        wheel = mini.releases / f"alpha-{version}-py3-none-any.whl"
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text += f'[[releases]]\nversion = "{version}"\nfile = "{wheel.name}"\nsha256 = "{sha256}"\n'
    (mini.folder / "releases.toml").write_text(text)
    return mini


def test_the_measurement_knows_right_from_wrong(three_releases):
    trials = measure(three_releases.checkout, "alpha", 10)
    assert {trial.kind for trial in trials} >= {"merged", "edited", "never merged, newer release"}
    assert all(trial.along for trial in trials if trial.kind == "merged"), summary(trials)
    assert not any(trial.along for trial in trials if trial.kind.startswith("never")), summary(trials)
    assert "| merged | 1 |" in summary(trials)


def test_changes_are_neither_tiny_nor_huge_and_the_same_each_time():
    before = {PATH: OLD, "alpha/tiny.py": b"one = 1\n"}
    after = {PATH: NEW, "alpha/tiny.py": b"one = 2\n"}
    assert pick_changes(before, after, 10) == pick_changes(before, after, 10) == [(PATH, OLD, NEW)]
    assert reworded(OLD, NEW) is None, "three added lines are too few to reword one"
