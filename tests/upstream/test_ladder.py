"""Each rung by itself: what it must see, and what must not fool it."""

from __future__ import annotations

import hashlib

import pytest

from sm120.integration.upstream.detector import as_change, measure, pick_changes, reworded, summary
from sm120.integration.upstream.ladder import Change, climb, decide

from .. import mini_checkout as foundation

PATH = "alpha/core.py"
OLD = foundation.PRISTINE[PATH].encode()
NEW = OLD.replace(b"line_5 = 5\n", b"line_5 = max(5, 0)\nextra_5 = line_5\nother_5 = extra_5\n")
CHANGE = as_change(PATH, OLD, NEW)


def rungs(verdict) -> dict[str, bool | None]:
    return {rung.name: rung.holds for rung in verdict.rungs}


def test_on_its_own_base_it_applies_and_nothing_else_holds():
    verdict = climb(CHANGE, {PATH: OLD})
    assert not verdict.merged
    assert rungs(verdict) == {
        "forward": True,
        "reverse": False,
        "reverse 3-way": False,
        "added lines": False,
        "hunks": False,
    }


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


LONG = b"".join(b"value_%d = compute(%d, 'base')\n" % (n, n) for n in range(12))
WIDE = as_change(
    PATH, OLD, OLD.replace(b"line_20 = 20\n", b"line_20 = 20\n" + LONG).replace(b"line_5 = 5\n", b"line_5 = 55\n")
)
WIDE_NEW = WIDE.after[PATH] or b""


def test_what_an_earlier_release_took_needs_evidence_on_the_one_asked_about():
    taken = climb(WIDE, {PATH: WIDE_NEW})
    half = LONG.replace(b"value_1", b"first_1").replace(b"compute(7", b"calculate(7")
    moved_on = climb(WIDE, {PATH: WIDE_NEW.replace(LONG, half).replace(b"line_5 = 55\n", b"line_5 = 5.5\n")})
    rewritten = climb(WIDE, {PATH: b"rewritten = True\n" * 30})
    back = climb(WIDE, {PATH: OLD})
    other_context = OLD.replace(b"line_19 = 19\n", b"nineteen = 19\n").replace(b"line_4 = 4\n", b"four = 4\n")
    reverted = climb(WIDE, {PATH: other_context})
    assert not moved_on.merged and "lines like its own" in moved_on.why
    assert decide([taken, moved_on])[0] == "merged", decide([taken, moved_on])
    assert decide([taken, rewritten]) == (
        "not told apart",
        "an earlier release took it, and 0 of its 13 lines are in this one",
    )
    again = climb(WIDE, {PATH: other_context.replace(b"line_5 = 5\n", b"line_5 = 5  # for now\n")})
    assert decide([taken, again])[0] == "absent", "nearer to what was than to what it became"
    state, why = decide([taken, back])
    assert state == "absent" and "taken it back" in why
    assert not reverted.rung("forward").holds
    state, why = decide([taken, reverted])
    assert state == "absent" and "as it was before again" in why, (state, why)


@pytest.mark.parametrize("left_out", [1, 2])
def test_a_half_is_called_a_half_and_names_the_hunk_that_lacks(left_out):
    parts = (b"line_5 = 55\n", b"line_5 = 5\n"), (LONG, b"")
    verdict = climb(WIDE, {PATH: WIDE_NEW.replace(*parts[left_out - 1])})
    assert (verdict.state, verdict.where) == ("partly", f"{PATH}:{left_out}"), verdict.why
    assert verdict.why.startswith("1 of 2 hunks are there; not ")


def test_one_missing_line_of_many_is_a_half_too():
    verdict = climb(WIDE, {PATH: WIDE_NEW.replace(b"value_7 = compute(7, 'base')\n", b"")})
    assert (verdict.state, verdict.where) == ("partly", f"{PATH}:2"), verdict.why
    reworded = climb(WIDE, {PATH: WIDE_NEW.replace(b"value_7 = compute(7, 'base')\n", b"value_7 = compute(7, BASE)\n")})
    assert reworded.merged and not reworded.exact, "a line in other words at its place is not a missing one"


def test_a_created_file_that_upstream_has_in_part_is_a_half():
    text = b"".join(b"def helper_%d():\n    return %d + offset\n\n\n" % (n, n) for n in range(8))
    lines = text.splitlines(keepends=True)
    diff = f"diff --git a/n.py b/n.py\nnew file mode 100644\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1,{len(lines)} @@\n"
    created = Change(diff + "".join(f"+{line.decode()}" for line in lines), {"n.py": None}, {"n.py": text})
    assert climb(created, {"n.py": text}).exact
    verdict = climb(created, {"n.py": b"".join(lines[:20])})
    assert (verdict.state, verdict.where) == ("partly", "n.py:1"), verdict.why
    assert climb(created, {"n.py": b"theirs = 1\n"}).state == "not told apart"


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
    assert all(trial.state == "merged" for trial in trials if trial.kind == "merged"), summary(trials)
    assert not any(trial.state == "merged" for trial in trials if trial.kind.startswith("never")), summary(trials)
    assert "| merged | 1 |" in summary(trials)


def test_changes_are_neither_tiny_nor_huge_and_the_same_each_time():
    before = {PATH: OLD, "alpha/tiny.py": b"one = 1\n"}
    after = {PATH: NEW, "alpha/tiny.py": b"one = 2\n"}
    assert pick_changes(before, after, 10) == pick_changes(before, after, 10) == [(PATH, OLD, NEW)]
    assert reworded(OLD, NEW) is None, "three added lines are too few to reword one"
