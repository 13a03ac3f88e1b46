"""A pinned artifact is what its hash says, or it is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def test_wrong_hash_is_refused(built, refuses):
    pin = built.folder / "pin.toml"
    built.release(version="1.1")
    good = pin.read_text().split('sha256 = "')[1][:64]
    pin.write_text(pin.read_text().replace(good, "0" * 64))
    refuses(built, "artifact-hash", "alpha-1.1-py3-none-any.whl", good)


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_download_is_refused(built, refuses, damage):
    built.release(version="1.1")
    wheel = built.releases / "alpha-1.1-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 0xFF
    wheel.write_bytes(data)
    refuses(built, "artifact-hash", "alpha-1.1-py3-none-any.whl")


def test_damaged_cache_entry_is_fetched_again(mini):
    assert mini.build().returncode == 0
    (cached,) = Path(mini.environment["SM120_CACHE"]).rglob("*.whl")
    cached.write_bytes(cached.read_bytes()[:100])
    subprocess.run(["rm", "-rf", str(mini.checkout.build)], check=True)
    assert mini.build().returncode == 0
    assert mini.checkout.runtime.exists()


def test_no_network_is_refused(built, refuses, tmp_path):
    built.release(version="1.1")
    (tmp_path / "empty").mkdir()
    refuses(built, "artifact-unavailable", "alpha==1.1", "check the network", PIP_FIND_LINKS=str(tmp_path / "empty"))


def test_cached_artifact_needs_no_network(mini, tmp_path):
    assert mini.build().returncode == 0
    subprocess.run(["rm", "-rf", str(mini.checkout.build)], check=True)
    (tmp_path / "empty").mkdir()
    result = mini.build(PIP_FIND_LINKS=str(tmp_path / "empty"))
    assert result.returncode == 0, result.stderr
