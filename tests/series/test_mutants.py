"""What counts as a mutant: each kind is found on the patch's own lines, and nothing else is."""

from __future__ import annotations

import textwrap

import pytest

from sm120.integration.series.mutants import mutants_of
from sm120.integration.series.series import load_series

BEFORE = textwrap.dedent("""\
    def f(a, b, c):
        if c:
            g(a, c)
        return a
    """)
AFTER = textwrap.dedent('''\
    def f(a, b, c):
        if c:
            g(a, c)
        if b > 1:
            # Why not.
            a = a + b
            a = g(a, b, of=c, to=b)
            raise ValueError(f"{g(a, b)}")
        """Says something."""
        return a
    ''')


def patched(mini, before, after, file="alpha/code.py"):
    mini.patch("change", {file: after}, base={file: before})
    return load_series(mini.folder).patch("change")


def kinds(mutants):
    return sorted((mutant.kind, mutant.line) for mutant in mutants)


def test_every_kind_on_the_lines_that_the_patch_added(mini):
    patch = patched(mini, BEFORE, AFTER)
    mutants, moved = mutants_of(patch, lambda _: AFTER)
    assert moved == []
    assert kinds(mutants) == [
        ("drop hunk", 4),
        ("negate condition", 4),
        ("neighbour's argument", 7),
        ("neighbour's argument", 7),
        ("swap statements", 6),
    ]
    by_kind = {mutant.kind: mutant.text for mutant in mutants}
    assert by_kind["drop hunk"] == BEFORE
    assert "if (not (b > 1)):" in by_kind["negate condition"]
    assert by_kind["swap statements"].index("a = g(") < by_kind["swap statements"].index("a = a + b")
    assert {"g(b, b, of=c, to=b)", "g(a, a, of=c, to=b)", "g(a, b, of=b, to=b)"} & {
        line.strip().removeprefix("a = ") for mutant in mutants for line in mutant.text.splitlines()
    } == {"g(b, b, of=c, to=b)", "g(a, b, of=b, to=b)"}
    assert len({mutant.key for mutant in mutants}) == len(mutants)


def test_a_hunk_is_found_where_later_patches_moved_it_and_named_where_they_rewrote_it(mini):
    patch = patched(mini, BEFORE, AFTER)
    lower = "# one line more\n" + AFTER
    assert ("negate condition", 5) in kinds(mutants_of(patch, lambda _: lower)[0])
    assert mutants_of(patch, lambda _: AFTER.replace("b > 1", "b > 2")) == ([], ["alpha/code.py:1"])


@pytest.mark.parametrize(
    ("before", "after"),
    [("x = 1\n", "# why\nx = 1\n"), ("def f():\n    return 1\n", 'def f():\n    """Says."""\n    return 1\n')],
)
def test_what_is_the_same_program_is_no_mutant(mini, before, after):
    assert mutants_of(patched(mini, before, after), lambda _: after) == ([], [])


def test_another_language_has_its_hunks_dropped(mini):
    before, after = "// row\n", "// row\nint a = 1;\n"
    mutants, _ = mutants_of(patched(mini, before, after, "alpha/kernel.cu"), lambda _: after)
    assert [(mutant.kind, mutant.text) for mutant in mutants] == [("drop hunk", before)]


def test_a_new_file_is_not_dropped_whole(mini):
    mini.patch("change", {"alpha/new.py": AFTER})
    mutants, _ = mutants_of(load_series(mini.folder).patch("change"), lambda _: AFTER)
    assert {mutant.kind for mutant in mutants} == {"negate condition", "neighbour's argument", "swap statements"}


@pytest.mark.parametrize("text", ['x = f("ä", g(1), 2)\n', "x = f(\n    'ä', 2,\n)\n"])
def test_positions_count_bytes(mini, text):
    mutants, _ = mutants_of(patched(mini, "x = 0\n", text), lambda _: text)
    for mutant in mutants:
        compile(mutant.text, "mutant", "exec")
    assert {m.kind for m in mutants} == {"drop hunk", "neighbour's argument"}
