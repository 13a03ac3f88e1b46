"""Rung 5: what a probe does on a release is told apart, one that breaks keeps no other from running, and it is recorded."""

from __future__ import annotations

import datetime
import json

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.series import load_series
from sm120.integration.upstream import matrix
from sm120.integration.upstream.matrix import Cell, make_matrix, probe_rung, record_matrix
from sm120.integration.upstream.patch_table import patch_table, project_readme
from sm120.integration.upstream.probes import ProbeResult
from sm120.integration.upstream.recorded_matrix import load_record, record_path

from .. import mini_checkout as foundation
from .test_bump import list_release

TODAY = datetime.date(2026, 11, 29)
CORE = foundation.PRISTINE["alpha/core.py"]
GREEN = ProbeResult(2, 0, 0, 0, ())
RED = ProbeResult(1, 1, 0, 0, ("test_a: assert 1 == 2",))


@pytest.mark.parametrize(
    ("result", "holds", "mentions"),
    [
        (None, None, "not run"),
        (GREEN, True, "passes on the unpatched release (2 passed)"),
        (RED, False, "fails there: test_a: assert 1 == 2"),
        (ProbeResult(0, 1, 0, 0, ("test_a: Failed: no such flag",)), False, "no such flag"),
        (ProbeResult(0, 1, 0, 0, ("test_a[x]: AttributeError: no b",)), None, "does not fit that release"),
        (ProbeResult(0, 2, 0, 0, ("test_a: TypeError: f()", "test_b: assert 3 == 4")), False, "test_b: assert 3 == 4"),
        (
            ProbeResult(0, 0, 1, 0, ("tests.x: ImportError: cannot import name 'y' from 'z' (/home/me/z.py)",)),
            None,
            "cannot run there: ImportError: cannot import name 'y' from 'z'",
        ),
        (ProbeResult(1, 0, 0, 1, ()), None, "cannot run there: 1 of its tests skip"),
        (ProbeResult(0, 0, 0, 0, ()), None, "cannot run there: none of its tests ran"),
    ],
)
def test_each_outcome_is_told_apart(result, holds, mentions):
    rung = probe_rung(result)
    assert rung.holds is holds and mentions in rung.detail, rung
    assert "/home" not in rung.detail


@pytest.fixture
def queue(mini, monkeypatch):
    """Two patches, each with a probe; 1.0 is pinned and 0.9 listed."""
    mini.patch("first", {"alpha/core.py": CORE.replace("line_5 = 5\n", "line_5 = 55\n")})
    base = foundation.PRISTINE | {"alpha/core.py": CORE.replace("line_5 = 5\n", "line_5 = 55\n")}
    mini.patch(
        "second", {"alpha/core.py": base["alpha/core.py"].replace("line_30 = 30\n", "line_30 = 3030\n")}, base=base
    )
    list_release(mini, "0.9", foundation.PRISTINE)
    list_release(mini, "1.0", foundation.PRISTINE)
    for slug in ("first", "second"):
        probe = mini.checkout.root / load_series(mini.folder).patch(slug).fields["Probe"]
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(f"def test_{slug}():\n    assert False\n")
    for name, value in mini.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(matrix, "release_tree", lambda checkout, project, release, wheel: release.version)
    return mini


def words(table):
    return {row.slug: [row.cells[version].word for version in table.versions] for row in table.rows}


def test_a_probe_that_passes_on_an_older_release_shows_that_the_defect_came_later(queue, monkeypatch):
    monkeypatch.setattr(
        matrix,
        "run_probes",
        lambda checkout, patches, tree, **_: {patch.slug: GREEN if tree == "0.9" else RED for patch in patches},
    )
    table = make_matrix(queue.checkout, "alpha", probes=True)
    assert words(table) == {"first": ["n/a", "applies"], "second": ["n/a", "applies"]}
    assert "came later" in table.rows[0].cells["0.9"].why


def test_a_probe_that_takes_the_process_down_keeps_no_other_from_its_verdict(queue, monkeypatch):
    def run(checkout, patches, tree, **_):
        if any(patch.slug == "first" for patch in patches):
            raise Refusal("probe-crashed", "pytest gave no report:\nSegmentation fault")
        return {patch.slug: RED for patch in patches}

    monkeypatch.setattr(matrix, "run_probes", run)
    table = make_matrix(queue.checkout, "alpha", probes=True)
    details = {row.slug: row.cells["1.0"].rungs[-1].detail for row in table.rows}
    assert details["first"] == "cannot run there: the process ended early: Segmentation fault"
    assert details["second"] == "fails there: test_a: assert 1 == 2"

    monkeypatch.setattr(matrix, "run_probes", lambda *_, **__: (_ for _ in ()).throw(Refusal("probe-missing", "gone")))
    matrix_files = queue.checkout.build / "matrix"
    for path in matrix_files.rglob("*.json"):
        path.unlink()
    with pytest.raises(Refusal, match="probe-missing"):
        make_matrix(queue.checkout, "alpha", probes=True)


@pytest.mark.parametrize(
    "broken",
    [
        ProbeResult(0, 0, 1, 0, ("first: the process ended early: No module named pytest",)),
        ProbeResult(0, 0, 1, 0, ("first: the process ended early: the probes did not end within 300 s",)),
        ProbeResult(1, 0, 0, 1, ()),
    ],
    ids=["no-pytest", "time-out", "skipped"],
)
def test_what_broke_once_is_asked_again_and_never_recorded(queue, monkeypatch, broken):
    ran = []

    def run(checkout, patches, tree, **_):
        ran.append((tree, [patch.slug for patch in patches]))
        return {patch.slug: broken if patch.slug == "first" else RED for patch in patches}

    monkeypatch.setattr(matrix, "run_probes", run)
    table = make_matrix(queue.checkout, "alpha", probes=True)
    assert "cannot run there" in table.rows[0].cells["1.0"].rungs[-1].detail
    path = record_matrix(queue.checkout, [table], TODAY)
    assert len(json.loads(path.read_text())["probes"]) == 2, "the two answers of the second, on two releases"
    ran.clear()
    monkeypatch.setattr(
        matrix, "run_probes", lambda checkout, patches, tree, **_: ran.append(tree) or {p.slug: RED for p in patches}
    )
    table = make_matrix(queue.checkout, "alpha", probes=True)
    assert ran == ["0.9", "1.0"] and "fails there" in table.rows[0].cells["1.0"].rungs[-1].detail


def test_the_readme_is_made_from_the_record_and_a_stale_one_is_refused(queue, monkeypatch):
    with pytest.raises(Refusal, match=r"(?s)\[matrix-record\].*sm120 matrix --record"):
        patch_table(queue.checkout)
    monkeypatch.setattr(matrix, "run_probes", lambda checkout, patches, tree, **_: {p.slug: RED for p in patches})
    path = record_matrix(queue.checkout, [make_matrix(queue.checkout, "alpha", probes=True)], TODAY)
    assert "(**" not in patch_table(queue.checkout), "all of them are needed"
    text = project_readme(queue.checkout, "alpha")
    assert "| on 1.0 | on other releases |" in text and "| needed | applies 0.9 |" in text
    assert "on 2026-11-29" in text

    before = path.read_bytes()
    record_matrix(queue.checkout, [make_matrix(queue.checkout, "alpha")], TODAY + datetime.timedelta(40))
    assert path.read_bytes() == before, "recording what is known already changes nothing"

    # A fresh clone has the record and no build folder; what the probes did is not lost there.
    for cached in (queue.checkout.build / "matrix").rglob("*.json"):
        cached.unlink()
    table = make_matrix(queue.checkout, "alpha")
    assert table.rows[0].cells["0.9"].rungs[-1].detail == "fails there: test_a: assert 1 == 2"

    patch = queue.folder / "second.patch"
    patch.write_text(patch.read_text().replace("+line_30 = 3030", "+line_30 = 3031"))
    with pytest.raises(Refusal, match=r"\[matrix-stale\].*another series"):
        patch_table(queue.checkout)


@pytest.mark.parametrize("word", ["merged", "superseded", "conflicts"])
def test_the_readme_says_what_the_matrix_says(queue, word):
    table = make_matrix(queue.checkout, "alpha")
    table.rows[0].cells["1.0"] = Cell(word, "", "", table.rows[0].cells["1.0"].rungs)
    record_matrix(queue.checkout, [table], TODAY)
    row = next(line for line in project_readme(queue.checkout, "alpha").splitlines() if "first" in line)
    assert f"| {word} |" in row and "needed" not in row
    row = next(line for line in patch_table(queue.checkout).splitlines() if "first" in line)
    assert f"(**{word}** on 1.0)" in row


@pytest.mark.parametrize("text", ["{", "[]", '{"projects": {"alpha": {}}}', '{"colour": 1}'])
def test_a_record_that_does_not_read_is_refused(queue, text):
    record_path(queue.checkout).write_text(text)
    with pytest.raises(Refusal, match=r"\[matrix-record\].*matrix\.json"):
        load_record(queue.checkout)


def test_the_record_has_no_path_of_a_machine(queue, monkeypatch):
    failure = "test_a: ImportError: cannot import name 'y' from 'z' (/home/me/z.py)"
    broken = ProbeResult(0, 1, 0, 0, (failure,))
    monkeypatch.setattr(matrix, "run_probes", lambda checkout, patches, tree, **_: {p.slug: broken for p in patches})
    path = record_matrix(queue.checkout, [make_matrix(queue.checkout, "alpha", probes=True)], TODAY)
    assert "/home" not in path.read_text() and json.loads(path.read_text())["probes"]
