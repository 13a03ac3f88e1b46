"""`sm120`: every command is listed by what a reader is after, is found where the table says, and costs nothing until run."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sm120.integration import cli

ENTRIES = {name: entry for group in cli.COMMANDS.values() for name, entry in group.items()}
NAMES = list(ENTRIES)
# Serving becomes the server, whose output is its own; benches have a --json for kernels; prove writes rows to a file.
NO_JSON = {"serve", "bench", "prove", "runtime"}


@pytest.mark.parametrize("name", NAMES)
def test_a_command_says_what_it_does(name):
    """That it is found is half of it: `-h` shows its options, and a line of help stands for each in the list."""
    shown = CliRunner().invoke(cli.app, [name, "-h"])
    assert shown.exit_code == 0, shown.output
    assert "Usage" in shown.output and name in shown.output
    assert len(inspect.cleandoc(cli.load(name).help or "")) > 10, "a docstring"


def test_the_list_is_by_what_a_reader_is_after():
    said = CliRunner().invoke(cli.app, ["--help"]).output
    titles = list(cli.COMMANDS)
    assert [said.index(f"─ {title} ─") for title in titles] == sorted(said.index(f"─ {title} ─") for title in titles)
    shown = [name for title in titles for name in cli.COMMANDS[title]]
    assert all(f"│ {name} " in said for name in shown)
    assert len(NAMES) == len(set(NAMES))


def test_the_version_is_the_package_s():
    assert CliRunner().invoke(cli.app, ["--version"]).output == "sm120 0.1.0\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["prob"], "probe"), (["statsu"], "status"), (["doctor", "--jsn"], "--json"), (["series", "sav"], "save")],
)
def test_what_was_meant_is_said(typed, meant):
    said = CliRunner().invoke(cli.app, typed)
    assert said.exit_code == 2 and meant in said.output


def leaves(command):
    """The commands of a group, or the one itself."""
    return (
        [leaf for one in command.commands.values() for leaf in leaves(one)]
        if hasattr(command, "commands")
        else [command]
    )


def test_every_command_that_prints_tables_prints_json_too():
    """Some have a --json of their own; the others get the one that the table gives."""
    for name in NAMES:
        module = inspect.getsource(
            importlib.import_module(f"sm120.integration.{ENTRIES[name].where.partition(':')[0]}")
        )
        prints = re.search(r"\bTable\(|console\.print\(\w*table\(", module) is not None
        takes = all(any("--json" in option.opts for option in leaf.params) for leaf in leaves(cli.load(name)))
        assert takes or not prints or name in NO_JSON, name


def test_tables_become_json_and_the_rest_goes_to_standard_error():
    shown = CliRunner().invoke(cli.app, ["plan", "flash-next", "--weights", "78GiB", "--json"])
    tables = [json.loads(line) for line in shown.stdout.splitlines()]
    assert shown.exit_code == 0 and all(table["rows"] for table in tables)
    assert {"GPU memory", "GiB", "from"} == set(tables[0]["rows"][0])
    assert "tokens: " in shown.stderr
    assert "┃" in CliRunner().invoke(cli.app, ["plan", "flash-next", "--weights", "78GiB"]).stdout, (
        "the next command prints as ever"
    )


def test_a_group_offers_no_completion_of_its_own():
    assert "completion" not in CliRunner().invoke(cli.app, ["series", "-h"]).output


def test_listing_the_commands_imports_none_of_them():
    code = """
import sys
from typer.testing import CliRunner
from sm120.integration import cli
assert CliRunner().invoke(cli.app, ["--help"]).exit_code == 0
print(sorted(name for name in sys.modules if name.startswith("sm120.") and name.count(".") > 1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "['sm120.integration.cli']", done.stdout + done.stderr


def test_slugs_and_projects_are_completed(monkeypatch):
    from sm120.integration.series import completion

    assert "gdn-beta-fp32" in completion.slugs("gdn-b")
    assert completion.projects("sg") == ["sglang"]
    assert not completion.slugs("nothing-begins-so")


def test_the_shell_is_offered_what_can_follow():
    environment = {"_SM120_COMPLETE": "complete_bash", "COMP_WORDS": "sm120 clos", "COMP_CWORD": "1"}
    said = CliRunner(env=environment).invoke(cli.app, [], prog_name="sm120").output
    assert said.split() == ["closure"]
