"""A proof empties its own folder and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from sm120.integration.build import models
from sm120.integration.common.refusal import Refusal
from sm120.integration.prove import served_proof as prove_module
from sm120.integration.prove.rows import Row

from .proof_rows import one


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
