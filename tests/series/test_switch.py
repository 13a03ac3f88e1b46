"""A series is switched whole: killed anywhere, or on a full disk, it is the old one or the new one for whoever reads it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.series import load_series, write_patches
from sm120.integration.series.switch import settle, switch

from ..interrupted import DONE, KILLED, REFUSED, contents, interrupted


@pytest.fixture
def series(tmp_path) -> Path:
    """A folder that stands for a series, beside one that belongs to it."""
    folder = tmp_path / "patches" / "alpha"
    folder.mkdir(parents=True)
    for name in ("series", "one.patch", "two.patch"):
        (folder / name).write_text(f"old {name}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "probe.py").write_text("old probe\n")
    return folder


def change(folder: Path, check=lambda copy: None) -> None:
    """Rewrite one patch and the list, move a probe, drop the other patch."""
    tests = folder.parents[1] / "tests"
    put = {
        folder / "one.patch": b"new one\n",
        tests / "guards" / "probe.py": b"old probe\n",
        folder / "series": b"new list\n",
    }
    switch(folder, put, [folder / "two.patch", tests / "probe.py"], check=check)


def test_everything_is_in_its_place(series, tmp_path):
    change(series)
    assert contents(tmp_path) == {
        "patches/alpha/one.patch": b"new one\n",
        "patches/alpha/series": b"new list\n",
        "tests/guards/probe.py": b"old probe\n",
    }


def test_what_will_be_is_checked_before_anything_is(series, tmp_path):
    before = contents(tmp_path)

    def refuse(copy: Path) -> None:
        assert {path.name: path.read_text() for path in copy.iterdir()} == {
            "one.patch": "new one\n",
            "series": "new list\n",
        }
        raise Refusal("header-end", "no separator", path=copy / "one.patch", line=3)

    with pytest.raises(Refusal) as refused:
        change(series, refuse)
    assert (refused.value.path, refused.value.line) == (series / "one.patch", 3), "the place to be"
    assert contents(tmp_path) == before


def test_killed_anywhere_it_is_the_old_one_or_the_new_one(series, tmp_path):
    before = contents(tmp_path)
    kept = tmp_path.with_name("kept")
    shutil.copytree(tmp_path, kept)
    change(series)
    after = contents(tmp_path)
    met, at, code = set(), 0, KILLED
    while code == KILLED:
        shutil.rmtree(tmp_path)
        shutil.copytree(kept, tmp_path)
        code = interrupted(lambda: change(series), at)
        settle(series)
        now = contents(tmp_path)
        assert now in (before, after), f"killed before change {at}"
        met.add(now == after)
        change(series)
        assert contents(tmp_path) == after, "and it can be done again"
        at += 1
    assert code == DONE and at > 12 and met == {False, True}


def test_a_full_disk_changes_nothing(series, tmp_path):
    before = contents(tmp_path)
    at, code = 0, REFUSED
    while code == REFUSED:
        code = interrupted(lambda: change(series), at, full=True)
        if code == REFUSED:
            assert contents(tmp_path) == before, f"no room from change {at} on"
        at += 1
    assert code == DONE and at > 6


def test_a_full_disk_is_called_so(series, monkeypatch):
    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(Refusal, match=r"\[disk-full\] .*alpha: no space left while writing the series of alpha"):
        change(series)


def test_a_killed_save_is_finished_by_whoever_reads_the_series_next(mini):
    """By way of the functions that commands use: whatever reads the pin or the series settles it first."""
    path = mini.patch("first", {"alpha/tool.sh": "#!/bin/sh\necho beta\n"})
    old, new = path.read_bytes(), path.read_bytes().replace(b"without it", b"without that")
    seen, at, code = set(), 0, KILLED
    while code == KILLED:
        write_patches(mini.folder, {"first": old}, ["first"])
        code = interrupted(lambda: write_patches(mini.folder, {"first": new}, ["first"]), at)
        (patch,) = load_series(mini.folder).patches
        seen.add(patch.path.read_bytes())
        assert [entry.name for entry in mini.checkout.patches.iterdir()] == ["alpha"]
        at += 1
    assert seen == {old, new}
