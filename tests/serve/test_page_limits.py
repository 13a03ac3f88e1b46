"""`sm120 namespace gc` within bytes: the pages that the server's cleaner would delete, and a dry run that tells them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace import namespace_store, page_limits
from sm120.integration.serve.namespace.namespace_commands import app
from sm120.integration.serve.namespace.page_limits import keep_within, stored

MIB = 1 << 20


@pytest.fixture
def pile(tmp_path: Path) -> list[namespace_store.Namespace]:
    """Two namespaces of five pages, 2 MiB in two files each; a page of the one is as old as one of the other."""
    found = []
    for name in ("one", "other"):
        namespace = namespace_store.open_namespace(tmp_path, "label", {"schema": namespace_store.SCHEMA, "name": name})
        for i in range(5):
            store(namespace, f"{name}{i}", age=1000 * i + (name == "other"))
        found.append(namespace)
    return found


def store(namespace: namespace_store.Namespace, key: str, age: int) -> None:
    for suffix in ("_m_0_1_k", "_m_0_1_v"):
        path = namespace.pages / f"{sum(key.encode()) % 256:02x}" / (key + suffix)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.truncate(MIB)
        os.utime(path, (10**9 - age, 10**9 - age))


def keys(namespace: namespace_store.Namespace) -> list[str]:
    return sorted({path.name.partition("_")[0] for path in namespace.pages.glob("[0-9a-f][0-9a-f]/*")})


@pytest.mark.parametrize(
    ("each", "total", "left"),
    [
        (None, None, (5, 5)),
        (6 * MIB, None, (3, 3)),
        (None, 9 * MIB, (2, 2)),
        (None, 10 * MIB, (3, 2)),  # the page of the other is older by a second
        (4 * MIB, 6 * MIB, (2, 1)),
        (1, None, (0, 0)),
    ],
)
def test_what_a_dry_run_says_is_what_is_deleted(pile, each, total, left):
    said = keep_within(pile, each, total, delete=False)
    assert [len(keys(namespace)) for namespace in pile] == [5, 5]
    assert [(namespace.label, 5 - pages) for namespace, pages, _ in said] == [("label", n) for n in left]
    done = keep_within(pile, each, total, delete=True)
    assert [item[1:] for item in done] == [item[1:] for item in said]
    for namespace, name, count in zip(pile, ("one", "other"), left, strict=True):
        assert keys(namespace) == [f"{name}{i}" for i in range(count)]
        assert stored(namespace) == (2 * count, 2 * MIB * count)


def test_a_page_that_a_server_used_meanwhile_stays(pile):
    index = page_limits.page_index.PageIndex([str(pile[0].pages)])
    for _ in index.reconcile():
        pass
    index.record([], [["one4"]])
    keep_within(pile[:1], 2 * MIB, None, delete=True)
    assert keys(pile[0]) == ["one4"]


def test_command_line(pile, tmp_path):
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    assert "?" in run(app, ["list", "--root", str(tmp_path)]).stdout, "no index yet"
    said = run(app, ["gc", "--root", str(tmp_path), "--each", "6MiB", "--total", "10MiB"])
    assert said.exit_code == 0 and "would go" in said.stdout, said.output
    assert [len(keys(namespace)) for namespace in pile] == [5, 5]
    assert "deleted" in run(app, ["gc", "--root", str(tmp_path), "--total", "10MiB", "--delete"]).stdout
    assert [len(keys(namespace)) for namespace in pile] == [3, 2]
    assert "6" in run(app, ["list", "--root", str(tmp_path)]).stdout
    refused = run(app, ["gc", "--root", str(tmp_path), "--each", "many"])
    assert isinstance(refused.exception, Refusal) and "plan-size" in str(refused.exception)


def test_pages_that_cannot_be_indexed_are_refused_and_kept(pile, tmp_path):
    (pile[0].pages / ".index").write_text("in the way")
    with pytest.raises(Refusal, match="namespace-pages"):
        keep_within(pile, 1, None, delete=True)
    assert [len(keys(namespace)) for namespace in pile] == [5, 5]
