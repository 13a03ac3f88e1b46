"""Blocks that share a sequence: the merged row maxima have bytes of their own, not those of the flag read by all warps.

Where they share bytes, only a race detector shows it: warps read `isLastCta` with no barrier before the maxima are written.
"""

import re
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def merge() -> str:
    """What the last block runs in csrc/xqa/mha.cu, from reading the flag on, without comments."""
    places = [Path(entry) / "flashinfer" / "data" / "csrc" for entry in sys.path]
    places += [parent / "csrc" for parent in Path(__file__).resolve().parents]
    source = next(path for place in places if (path := place / "xqa" / "mha.cu").is_file())
    text = re.sub(r"//[^\n]*", "", source.read_text())
    found = re.search(r"bool const isLastCta = mbsmem\.isLastCta;(.*?)loadBufAsync", text, re.S)
    assert found is not None, "the merge of the last block reads another way now"
    return found[1]


def test_the_maxima_are_not_written_over_the_flag(merge):
    before_the_barrier = merge.split("__syncthreads()")[0]
    assert "storeFromReg" in before_the_barrier
    assert "reinterpret_cast<SMemWarpRowMax&>(smem)" not in before_the_barrier


def test_they_have_a_place_behind_the_flag(merge):
    assert "mbbuf.rowMax" in merge and "mbbuf = mbsmem.storage" in merge
