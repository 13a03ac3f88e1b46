"""`runtime.json` is read in one way: what is missing and what does not read is refused, each by its name."""

from __future__ import annotations

import json

import pytest

from sm120.integration.build.runtime_record import layer_folder, parse_record, read_record, record_or_none
from sm120.integration.common.refusal import Refusal

from ..runtime_records import record, written


def test_what_is_written_is_read(tmp_path):
    written(tmp_path / "home", "cuda", versions={"torch": "2.14.1"})
    assert read_record(tmp_path / "home") == record("cuda", versions={"torch": "2.14.1"})
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["runtime.json"], "nothing is left aside"


def test_what_else_decided_the_identity_is_kept(tmp_path):
    given = json.loads(written(tmp_path).read_text())
    given["ingredients"] |= {"layout": 1, "lock": "0" * 64}
    (tmp_path / "runtime.json").write_text(json.dumps(given))
    assert read_record(tmp_path).ingredients.model_dump() == given["ingredients"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "\xff", '{"identity": "short"}'])
def test_what_does_not_read_is_refused_with_the_field(tmp_path, text):
    path = tmp_path / "runtime.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(Refusal, match=r"(?s)\[runtime-record\] .*runtime\.json: .*fix: make runtime"):
        parse_record(path)
    assert record_or_none(tmp_path) is None


def test_an_identity_is_a_hash(tmp_path):
    given = json.loads(written(tmp_path).read_text())
    (tmp_path / "runtime.json").write_text(json.dumps(given | {"identity": "short"}))
    with pytest.raises(Refusal, match=r"\[runtime-record\] .*identity: "):
        read_record(tmp_path)


@pytest.mark.parametrize("place", ["home", "home/file"])
def test_without_a_runtime_the_command_that_makes_one_is_named(tmp_path, place):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").touch()
    with pytest.raises(Refusal, match=r"(?s)\[runtime-missing\] .*no runtime is installed there.*fix: make runtime"):
        read_record(tmp_path / place)
    assert record_or_none(tmp_path / place) is None


def test_the_layer_lies_beside_the_runtimes_behind_any_link(tmp_path):
    home = tmp_path / "runtimes" / "cpu-1"
    home.mkdir(parents=True)
    (tmp_path / "runtime").symlink_to(home)
    assert layer_folder(tmp_path / "runtime", "cpu-2") == tmp_path / "deps" / "cpu-2"
