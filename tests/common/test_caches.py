"""A home that is read-only costs nothing: what would be kept there is kept in the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sm120.integration.common.caches import library_caches
from sm120.integration.common.checkout import Checkout


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Where the tests' own home is read-only, these are set for every test.
    for name in [
        name for name in os.environ if name.endswith(("_CACHE", "_CACHE_DIR", "_CACHE_HOME", "_HOME", "_BASE"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As os.access answers a user to whom `folder` is read-only; root may write everywhere."""
    said = os.access
    below = lambda path: folder in (Path(path), *Path(path).parents)  # noqa: E731
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and below(path)) and said(path, mode))


def test_a_home_that_takes_them_gets_them(home, tmp_path):
    assert Checkout(tmp_path).cache == home / ".cache" / "sm120"
    assert library_caches(tmp_path / "c") == {}


def test_a_home_that_is_read_only_gets_nothing(home, tmp_path, monkeypatch):
    read_only(monkeypatch, home)
    monkeypatch.setenv("HF_HOME", "/mine")
    assert Checkout(tmp_path).cache == tmp_path / "build" / "cache"
    found = library_caches(tmp_path / "c")
    assert found["SGLANG_CACHE_DIR"] == str(tmp_path / "c" / "sglang")
    assert "HF_HOME" not in found, "the user's own choice stays"


def test_a_home_that_does_not_exist_is_no_reason_to_stop(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(home / "nobody" / "here"))
    read_only(monkeypatch, home)
    assert Checkout(tmp_path).cache == tmp_path / "build" / "cache"


def test_what_was_named_is_used(home, tmp_path, monkeypatch):
    read_only(monkeypatch, home)
    monkeypatch.setenv("SM120_CACHE", "/named")
    assert Checkout(tmp_path).cache == Path("/named")
    monkeypatch.delenv("SM120_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert Checkout(tmp_path).cache == tmp_path / "elsewhere" / "sm120"
    assert library_caches(tmp_path / "c") == {}
