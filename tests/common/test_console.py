"""A table in a file or a pipe is whole; a terminal or COLUMNS decides otherwise."""

import io

import pytest
from rich.table import Table

from sm120.integration.common.console import WIDTH_OF_FILES, UncutConsole, make_console, working
from sm120.integration.common.refusal import there_are


@pytest.mark.parametrize("stderr", [False, True])
def test_a_wide_table_is_whole_where_there_is_no_terminal(capsys, monkeypatch, stderr):
    monkeypatch.delenv("COLUMNS")
    console = make_console(stderr=stderr)
    table = Table("case", "what must hold")
    table.add_row("outside-registered-memory", "x" * 150)
    console.print(table)
    assert console.width == WIDTH_OF_FILES
    printed = capsys.readouterr()
    assert "x" * 150 in (printed.err if stderr else printed.out)


def test_columns_decides(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert make_console().width == 100


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_word_of_a_table_is_cut(width):
    out = io.StringIO()
    table = Table("patch", "tier", "what")
    names = ["hicache-nixl-bounce", "gdn-beta-fp32", "a-name-that-is-longer-than-half-of-a-narrow-terminal"]
    for name in names:
        table.add_row(name, "core", "a/path/without/a/space/" * 4)
    UncutConsole(file=out, width=width).print(table)
    printed = out.getvalue()
    assert "…" not in printed and max(map(len, printed.splitlines())) <= width
    assert all(name in printed for name in names if width // 2 >= max(map(len, names)))
    column = "".join(line.split("│")[1].strip() for line in printed.splitlines() if "│" in line)
    assert all(name in column for name in names)


def test_what_takes_long_is_said_on_standard_error(capsys):
    with working("comparing [everything]"):
        pass
    printed = capsys.readouterr()
    assert printed.err == "comparing [everything] …\n" and printed.out == ""


def test_a_name_that_is_misspelled_is_answered_with_what_was_meant():
    known = ["gdn-beta-fp32", "gdn-recover-ssm", "qsa-topk-exact-ties"]
    assert there_are("gdn-beta-fp23", known) == "; did you mean gdn-beta-fp32?"
    assert there_are("topk", known) == "; did you mean qsa-topk-exact-ties?"
    assert there_are("zzz", known) == "; there are: gdn-beta-fp32, gdn-recover-ssm, qsa-topk-exact-ties"
