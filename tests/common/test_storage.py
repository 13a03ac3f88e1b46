"""What a storage folder can do is found out by doing it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120.integration.common import storage as storage_module


def test_storage_is_probed_by_doing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = storage_module.probe(tmp_path / "pages")
    assert found.folder.is_dir() and found.files() == {}
    monkeypatch.setattr(storage_module, "has_io_uring", lambda: False)
    monkeypatch.setattr(storage_module, "_has_direct_io", lambda folder: False)
    poor = storage_module.probe(tmp_path)
    assert "libaio" in str(poor) and "buffered" in str(poor)
    assert json.loads(poor.extra_config())["use_aio"] == "true"
    assert json.loads(poor.extra_config())["use_direct_io"] is False
