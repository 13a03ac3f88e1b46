"""Rows, verdicts and the table: what counts as equal, and what makes a proof fail."""

import json
import math
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from sm120.integration.build import models
from sm120.integration.common import storage as storage_module
from sm120.integration.common.refusal import Refusal
from sm120.integration.common.storage import Storage
from sm120.integration.prove import served_proof as prove_module
from sm120.integration.prove.caching import wait_until_written
from sm120.integration.prove.reference import Verdict, judge
from sm120.integration.prove.rows import Row
from sm120.integration.prove.server import ServerFailed
from sm120.integration.prove.speculation import against_base
from sm120.integration.prove.summary import Summary
from sm120.integration.prove.table import print_table, write_json

EQUAL = Verdict(True, 0, None)


def one(**changes) -> Row:
    values = {"group": "dense", "step": "cold", "verdict": EQUAL, "cached": {}, "seconds": 1.0}
    return Row(**{**values, **changes})


@pytest.mark.parametrize(
    ("shortfall", "tokens", "verdict"),
    [
        ([0.0, 0.0], [1, 2], EQUAL),
        ([0.0, 0.01], [1, 2], Verdict(True, 1, None)),
        ([0.0, 0.2], [1, 2], Verdict(False, 0, 1)),
        ([math.nan, 0.0], [1, 2], Verdict(False, 0, 0)),
        ([0.0], [1], Verdict(False, 0, 1)),
        ([0.0, 0.0, 0.0], [1, 2, 3], Verdict(False, 0, 2)),
        ([], [], Verdict(False, 0, 0)),
    ],
    ids=["equal", "tie", "different", "nan", "too-few", "too-many", "none"],
)
def test_judge(shortfall: list[float], tokens: list[int], verdict: Verdict) -> None:
    assert judge(tokens, shortfall, wanted=2, tolerance=0.05) == verdict


@pytest.mark.parametrize(
    ("wanted", "cached", "problem"),
    [
        ("nowhere", {"device": 1}, "a cold request found cached tokens"),
        ("device", {"device": 0}, "no token came from device"),
        ("device", {"device": 16, "host": 16}, "tokens came from host, beyond device"),
        ("host", {"device": 16}, "no token came from host"),
        ("storage", {"host": 16}, "no token came from storage"),
    ],
)
def test_a_row_from_the_wrong_tier_fails(wanted: str, cached: dict[str, int], problem: str) -> None:
    row = one(wanted=wanted, cached=cached)
    assert not row.ok and row.problems == (problem,)


def test_a_row_that_had_to_accept_drafts_and_did_not_fails() -> None:
    assert one(accepts=True, accept_length=1.0).problems == ("no draft token was accepted",)
    assert one(accepts=True, accept_length=1.2).ok


def test_speculation_is_compared_with_the_run_without() -> None:
    other = Verdict(True, 0, None)
    assert against_base([1, 2, 3], [1, 2, 3], Verdict(False, 0, 0), dtype="float32") == EQUAL
    assert against_base([1, 9, 3], [1, 2, 3], other, dtype="float32") == Verdict(False, 0, 1)
    # The reference alone is no excuse; a tie that it confirms is one, in float16 only.
    assert not against_base([1, 9, 3], [1, 2, 3], other, dtype="float16").equal
    assert against_base([1, 9, 3], [1, 2, 3], Verdict(True, 1, None), dtype="float16").equal
    assert not against_base([1, 9, 3], [1, 2, 3], Verdict(True, 1, None), dtype="float32").equal
    assert against_base([1, 2], [1, 2, 3], other, dtype="float32") == Verdict(False, 0, 2)


def test_table_and_json_tell_the_same(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1 pinned_memory m\n2 pinned_memory m\n2 rotary_embedding n\nhalf")
    summary = Summary(tmp_path / "log", storage="NIXL POSIX, io_uring, O_DIRECT", start_seconds={"dense first": 16.04})
    summary.memory_bytes["dense first"] = 1_700_000_000
    rows = [
        one(cached={"device": 0, "host": 0, "storage": 0}, wanted="nowhere"),
        one(step="host hit", wanted="host", cached={"host": 192}, verdict=Verdict(False, 0, 7)),
    ]
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    print_table(rows, summary, console)
    text = console.export_text()
    for expected in (
        "NO, from token 7",
        "192",
        "FAILED: dense, host hit: tokens differ from token 7 on",
        "io_uring, O_DIRECT",
        "up in 16.0 s, 1.70 GB resident",
        "2 stand-ins",
        "pinned_memory, rotary_embedding",
    ):
        assert expected in text
    write_json(rows, summary, tmp_path / "rows.json")
    told = json.loads((tmp_path / "rows.json").read_text())
    assert told["ok"] is False and [row["ok"] for row in told["rows"]] == [True, False]
    assert told["stand_ins"] == ["pinned_memory", "rotary_embedding"]
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_storage_is_probed_by_doing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = storage_module.probe(tmp_path / "pages")
    assert found.folder.is_dir() and found.files() == {}
    monkeypatch.setattr(storage_module, "has_io_uring", lambda: False)
    monkeypatch.setattr(storage_module, "_has_direct_io", lambda folder: False)
    poor = storage_module.probe(tmp_path)
    assert "libaio" in str(poor) and "buffered" in str(poor)
    assert json.loads(poor.extra_config())["use_aio"] == "true"
    assert json.loads(poor.extra_config())["use_direct_io"] is False


def test_waiting_for_storage_ends_when_it_is_quiet_or_never_wrote(tmp_path: Path) -> None:
    storage = Storage(tmp_path, io_uring=True, direct=True)
    with pytest.raises(ServerFailed, match="0 files after"):
        wait_until_written(storage, quiet_for=0.2, timeout=0.5)
    (tmp_path / "page").write_bytes(b"x")
    wait_until_written(storage, quiet_for=0.2, timeout=5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"family": "mixture", "dtype": "float32"}, "model family 'mixture': use dense, hybrid or dflash"),
        ({"family": "dense", "dtype": "bfloat16"}, "model dtype 'bfloat16': use float16 or float32"),
        ({"family": "dense", "dtype": "float32", "mtp": True}, "an MTP head belongs to a hybrid, not to 'dense'"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.Model(seed=1, context=1.0, **values)


def test_a_proof_empties_its_own_folder_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    work = tmp_path / "mine"
    foreign = [work / "app.log", work / "storage-2024" / "photograph.jpg"]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
    used: list[Path] = []

    def caching(*_: object, work: Path, **rest: object) -> list[Row]:
        assert not list(work.glob("*.log")), "the last proof's"
        (work / "dense-first.log").write_text("of this proof")
        used.append(work)
        return [one()]

    monkeypatch.setattr(prove_module, "prove_caching", caching)
    monkeypatch.setattr(models, "make", lambda runtime, model, cache: cache)
    for _ in range(2):
        assert prove_module.prove(tmp_path, work=work, console=Console(quiet=True)) == 0
    assert [file.read_text() for file in foreign] == ["precious"] * 2
    # Not even a folder of the same name, whoever made it.
    shutil.rmtree(used[0])
    used[0].mkdir()
    (used[0] / "thesis.log").write_text("precious")
    with pytest.raises(Refusal, match=r"\[proof-folder\].*was not made by a proof"):
        prove_module.prove(tmp_path, work=work, console=Console(quiet=True))
    assert (used[0] / "thesis.log").read_text() == "precious"


def test_a_removal_that_dies_does_not_lock_out_the_next_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = prove_module.emptied(tmp_path / "last")
    (last / "storage-dense").mkdir()
    (last / "storage-dense" / "page").write_text("large")
    (last / "server.log").write_text("of an earlier proof")
    (tmp_path / ".last-notes").mkdir()
    (tmp_path / ".last-notes" / "thesis.log").write_text("precious")

    def interrupted(folder: Path) -> None:
        for file in filter(Path.is_file, folder.iterdir()):
            file.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prove_module.emptied(tmp_path / "last")
    for _ in range(2):
        assert [path.name for path in prove_module.emptied(tmp_path / "last").iterdir()] == [prove_module.MADE]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".last-notes", "last"], "what was left is gone too"
    assert (tmp_path / ".last-notes" / "thesis.log").read_text() == "precious"
