"""A series is read and written as a whole."""

from __future__ import annotations

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.series import write_patches


def test_a_series_that_cannot_be_written_whole_is_not_written(built):
    good = (built.folder / "first-change.patch").read_bytes()
    before = {path.name: path.read_bytes() for path in built.folder.iterdir()}
    changed = good.replace(b"without it", b"without that")
    with pytest.raises(Refusal, match="header-end"):
        write_patches(built.folder, {"first-change": changed, "second-change": b"no patch\n"}, ["second-change"])
    assert {path.name: path.read_bytes() for path in built.folder.iterdir()} == before
    assert [path.name for path in built.checkout.patches.iterdir()] == ["alpha"]


@pytest.mark.parametrize(
    ("series", "code", "line"),
    [
        ("first-change.patch\nghost.patch\n", "patch-missing", 2),
        ("first-change.patch\nfirst-change.patch\n", "series-twice", 2),
        ("", "series-unlisted", None),
        ("first-change.patch -p0\n", "series-line", 1),
        ("../first-change.patch\n", "series-line", 1),
    ],
    ids=["missing", "duplicate", "unlisted", "option", "folder"],
)
def test_bad_series_is_refused(built, refuses, series, code, line):
    (built.folder / "series").write_text(series)
    message = refuses(built, code)
    assert line is None or f"series:{line}:" in message


def test_two_patches_on_one_new_file_are_refused(built, refuses):
    built.patch("new-one", {"alpha/new.py": "one = 1\n"})
    built.patch("new-two", {"alpha/new.py": "two = 2\n"})
    refuses(built, "series-create-twice", "new-two creates alpha/new.py, which new-one creates already")
