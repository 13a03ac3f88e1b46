"""A table in a file or a pipe is whole; a terminal or COLUMNS decides otherwise."""

import pytest
from rich.table import Table

from sm120.integration.console import WIDTH_OF_FILES, make_console


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
