"""What a bare machine lacks is said before a build, and a path that shells split is no reason for one to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120.integration.build import runtime
from sm120.integration.common.refusal import Refusal


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int) -> None:
    path = tmp_path / "my-c++"
    path.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{says}' >&2\nexit {code}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{path}' -O1")


def test_missing_headers_are_refused_with_what_brings_them(tmp_path, monkeypatch):
    compiler(tmp_path, monkeypatch, "x.cpp:2:10: fatal error: openssl/sha.h: No such file or directory", 1)
    with pytest.raises(Refusal, match=r"(?s)\[headers-missing\].*openssl/sha\.h.*fix: .*libssl-dev"):
        runtime.check_headers()
    compiler(tmp_path, monkeypatch, "", 0)
    runtime.check_headers()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Refusal, match=r"\[headers-missing\].*no-such-compiler"):
        runtime.check_headers()


@pytest.mark.parametrize("name", ["a clone", "a'b", "a$b", "a(b)"])
def test_a_layer_is_imported_by_a_path_that_no_shell_splits(tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layer, home = tmp_path / name / "deps" / "cpu-1", tmp_path / name / "runtimes" / "cpu-2"
    for folder in (layer, home):
        runtime.site_packages(folder).mkdir(parents=True)
    runtime.link_layer(home, layer)
    line = (runtime.site_packages(home) / "dependency_layer.pth").read_text()
    (place,) = (tmp_path / "cache" / "sm120" / "places").iterdir()
    assert place.resolve() == layer and str(place) in line and str(layer) not in line
    assert runtime.plain_path(layer) == place, "the same layer has the same place"


def test_a_plain_path_stays_as_it_is(tmp_path):
    assert runtime.plain_path(tmp_path / "deps") == tmp_path / "deps"
