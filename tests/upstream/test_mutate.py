"""Mutants against a real probe: what it catches, what survives, what does not end, and a run that goes on."""

from __future__ import annotations

import json

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.series import load_series
from sm120.integration.upstream import mutate as module
from sm120.integration.upstream.mutants_page import load_scores, page, page_path, record
from sm120.integration.upstream.mutate import mutate

BEFORE = "def size(a, b):\n    return a\n"
AFTER = "def size(a, b):\n    if b > 1:\n        return max(a, b)\n    return a\n"
PROBE = """
from alpha.code import size

def test_size():
    assert size(5, 2) == 5 and size(5, 0) == 5
"""


@pytest.fixture
def subject(mini, tmp_path, monkeypatch):
    """A patch, its tree, and a probe that looks at half of it."""
    mini.patch("change", {"alpha/code.py": AFTER}, base={"alpha/code.py": BEFORE})
    patch = load_series(mini.folder).patch("change")
    probe = mini.checkout.root / patch.fields["Probe"]
    probe.parent.mkdir(parents=True)
    probe.write_text(PROBE)
    tree = tmp_path / "tree"
    (tree / "alpha").mkdir(parents=True)
    (tree / "alpha" / "__init__.py").touch()
    (tree / "alpha" / "code.py").write_text(AFTER)
    monkeypatch.setattr(module, "tree_environment", lambda _, tree: {"PYTHONPATH": str(tree)})
    return mini, patch, probe, tree


def test_what_is_caught_and_what_survives(subject):
    mini, patch, _, tree = subject
    told = []
    score = mutate(mini.checkout, patch, tree, workers=2, told=lambda *arguments: told.append(arguments))
    assert {(mutant.kind, mutant.line): outcome for _, _, mutant, outcome in told} == {
        ("drop hunk", 2): "survived",  # size(5, 2) is 5 either way
        ("negate condition", 2): "survived",
        ("neighbour's argument", 3): "caught",
    }
    assert (score.caught, score.mutants) == (1, 3)
    assert {(at["kind"], at["line"]) for at in score.survivors} == {("drop hunk", 2), ("negate condition", 2)}
    assert (tree / "alpha" / "code.py").read_text() == AFTER
    assert list((mini.checkout.build / "mutants").iterdir()) == [
        mini.checkout.build / "mutants" / f"change-{score.patch}.json"
    ]


def test_what_does_not_end_is_caught(subject, monkeypatch):
    """No pytest ends at once, however fast the machine."""
    mini, patch, _, tree = subject
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "SLOWEST", 0.0)
    outcomes = []
    score = mutate(mini.checkout, patch, tree, told=lambda *arguments: outcomes.append(arguments[-1]))
    assert outcomes == ["did not end"] * 3 and score.caught == 3


def test_an_interrupted_run_goes_on_and_a_changed_probe_begins_again(subject, monkeypatch):
    mini, patch, probe, tree = subject

    def interrupt(done, of, mutant, outcome):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mutate(mini.checkout, patch, tree, told=interrupt)
    (notes,) = (mini.checkout.build / "mutants").glob("*.json")
    assert len(json.loads(notes.read_text())) == 1
    assert (tree / "alpha" / "code.py").read_text() == AFTER
    seen = []
    first = mutate(mini.checkout, patch, tree, told=lambda *arguments: seen.append(arguments))
    assert [done for done, *_ in seen] == [2, 3]
    probe.write_text(PROBE + "    assert size(1, 2) == 2\n")
    again = mutate(mini.checkout, patch, tree)
    assert (first.caught, again.caught) == (1, 3) and first.patch != again.patch


def test_a_probe_that_does_not_pass_is_refused(subject):
    mini, patch, probe, tree = subject
    probe.write_text("def test_no():\n    assert False\n")
    with pytest.raises(Refusal, match="mutate-not-green"):
        mutate(mini.checkout, patch, tree)


def test_a_patch_that_later_ones_have_rewritten_is_refused(subject):
    mini, patch, _, tree = subject
    (tree / "alpha" / "code.py").write_text("other = 1\n")
    with pytest.raises(Refusal, match="mutate-no-mutants"):
        mutate(mini.checkout, patch, tree)


def test_the_record_and_its_page(subject):
    mini, patch, probe, tree = subject
    (mini.checkout.root / "docs").mkdir(exist_ok=True)
    mini.patch("other", {"alpha/other.py": "x = 1\n"})
    score = mutate(mini.checkout, patch, tree)
    record(mini.checkout, {"change": score})
    assert load_scores(mini.checkout) == {"change": score}
    said = page_path(mini.checkout).read_text()
    assert "| `change` | 3 | 1 | 33% | 0 |" in said and "other`" not in said
    assert "* negate condition, `alpha/code.py:2`: `if b > 1:`" in said
    probe.write_text(PROBE + "\n")
    assert "`change` (of an earlier text)" in page(mini.checkout)
