"""A full disk is known by the error and by what any tool says of it."""

from __future__ import annotations

import errno
import os

import pytest

from sm120.integration.common.disk import free_bytes, is_full, refuse_if_full
from sm120.integration.common.refusal import Refusal


def test_a_full_disk_is_known():
    assert is_full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x"))
    assert is_full("fatal: sha1 file write error: No space left on device")
    assert is_full(OSError("tar: No space left on device"))
    assert not is_full(OSError(errno.EACCES, "Permission denied")) and not is_full("error: patch failed: x.py:3")


def test_it_is_refused_by_name(tmp_path):
    with pytest.raises(Refusal) as refused:
        refuse_if_full(OSError(errno.ENOSPC, "No space left on device"), "packing x", tmp_path)
    assert (refused.value.code, refused.value.what) == ("disk-full", "no space left while packing x")
    refuse_if_full("error: something else", "packing x", tmp_path)


def test_free_space_is_that_of_the_nearest_folder(tmp_path):
    assert 0 < free_bytes(tmp_path / "not" / "made" / "yet") < 2**60
