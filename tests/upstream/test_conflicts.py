"""A conflict is explained by the edit of upstream's that it died of, and by nothing else; a file that moved is found."""

from __future__ import annotations

import pytest

from sm120.integration.upstream.conflicts import upstream_changes, went_to
from sm120.integration.upstream.ladder import Change

from .. import mini_checkout as foundation

PATH = "alpha/core.py"
# A line that repeats is what an explanation by content alone is led astray by.
LINES = [f"value_{n} = compute({n})\n" if n % 5 else "return_nothing()\n" for n in range(60)]


def text(**lines: str) -> bytes:
    return "".join(lines.get(f"at{n}", line) for n, line in enumerate(LINES)).encode()


def change(before: bytes, after: bytes) -> Change:
    return Change("", {PATH: before}, {PATH: after})


def explained(ours: Change, release: bytes, pinned: bytes | None = None) -> list[str]:
    said = upstream_changes(ours, {PATH: pinned or text()}, {PATH: release}, PATH)
    return [line.strip() for line in said if line.startswith("    ")]


def test_only_the_edit_that_overlaps_is_shown():
    release = text(at4="far()\n", at6="far_too()\n", at31="theirs()\n", at50="return_something()\n")
    assert explained(change(text(), text(at31="ours()\n")), release) == ["- value_31 = compute(31)", "+ theirs()"]


def test_of_several_hunks_only_those_that_do_not_merge_are_explained():
    release = text(at11="near_ours_that_merges()\n", at31="theirs()\n")
    ours = change(text(), text(at13="ours()\n", at31="ours_too()\n"))
    assert explained(ours, release) == ["- value_31 = compute(31)", "+ theirs()"]


def test_places_are_those_of_the_pin_whatever_earlier_patches_put_in_front():
    moved = b"".join(b"earlier_%d()\n" % n for n in range(20))
    release = text(at11="elsewhere()\n", at31="theirs()\n", at51="elsewhere()\n")
    ours = change(moved + text(), moved + text(at31="ours()\n"))
    assert explained(ours, release) == ["- value_31 = compute(31)", "+ theirs()"]


def test_a_file_that_is_new_or_gone_is_said_to_be():
    ours = change(text(), text(at3="ours()\n"))
    assert "removed" in upstream_changes(ours, {PATH: text()}, {}, PATH)[0]
    assert "has this file now" in upstream_changes(ours, {}, {PATH: text()}, PATH)[0]


LICENCE = "".join(f"# Licensed under the terms of line {n} of the licence.\n" for n in range(20))


@pytest.fixture
def wheels(tmp_path):
    def make(version: str, files: dict[str, str]):
        return foundation.make_wheel(tmp_path / version, "alpha", version, files)

    return make


def test_a_moved_file_is_found_by_its_code_and_not_by_its_licence(wheels):
    code = text().decode()
    pinned = wheels("1.0", {PATH: LICENCE + code, "alpha/other.py": LICENCE + "x = 1\n"})
    release = wheels(
        "1.1", {"alpha/other.py": LICENCE + "x = 1\n", "alpha/deep/kernel.py": LICENCE + "import os\n" + code}
    )
    old = (LICENCE + code).encode()
    ours = change(old, old.replace(b"value_31 = compute(31)\n", b"ours()\n"))
    said = went_to(ours, PATH, pinned, release)
    assert said == f"{PATH}: its code is in alpha/deep/kernel.py now (7 of the 7 lines that the patch needs)"


def test_a_twin_that_was_there_before_is_not_where_it_went(wheels):
    code = text().decode()
    pinned = wheels("1.0", {PATH: code, "alpha/twin.py": code})
    release = wheels("1.1", {"alpha/twin.py": code, "alpha/licence.py": LICENCE})
    ours = change(code.encode(), text(at31="ours()\n"))
    assert went_to(ours, PATH, pinned, release) == f"{PATH}: upstream removed it, and its code is in no other file"


def test_too_few_lines_tell_nothing(wheels):
    pinned, release = wheels("1.0", {PATH: "x = 1\n"}), wheels("1.1", {"alpha/other.py": "x = 1\n"})
    assert "too few lines" in went_to(change(b"x = 1\n", b"x = 2\n"), PATH, pinned, release)
