"""Waiting for the pages of a prompt ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120.integration.common.storage import Storage
from sm120.integration.prove.caching import wait_until_written
from sm120.integration.prove.server import ServerFailed


def test_waiting_for_storage_ends_when_it_is_quiet_or_never_wrote(tmp_path: Path) -> None:
    storage = Storage(tmp_path, io_uring=True, direct=True)
    with pytest.raises(ServerFailed, match="0 files after"):
        wait_until_written(storage, quiet_for=0.2, timeout=0.5)
    (tmp_path / "page").write_bytes(b"x")
    wait_until_written(storage, quiet_for=0.2, timeout=5)
