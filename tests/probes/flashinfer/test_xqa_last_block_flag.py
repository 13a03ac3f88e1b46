"""Blocks that share a sequence: no warp may write over the flag that the others of its block have still to read.

The kernel is compiled for sm_120a, and its PTX runs on the CPU under an executor that keeps vector clocks of all warps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# The package is not imported: its __init__ asks for a device. The first one on the path is the one under test.
for entry in sys.path:
    if (Path(entry) / "flashinfer" / "data" / "csrc" / "xqa" / "mha.cu").is_file():
        os.environ["SM120_FLASHINFER"] = entry
        break
executor = pytest.importorskip("sm120.kernels._ptx.executor", reason="runs with sm120-runtime's PTX executor")
xqa = pytest.importorskip("sm120.kernels._ptx.flashinfer_xqa")
reference = pytest.importorskip("sm120.kernels.xqa_mask.reference")

pytestmark = pytest.mark.skipif(xqa.missing() is not None, reason=str(xqa.missing()))


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_the_last_block_s_flag_is_read_before_it_is_written_over(schedule):
    case = xqa.Verification([600], [8], [reference.visible_drafts("causal", 8)])
    # What exited warps had prefetched is taken to have landed: another matter.
    out, _ = case.run(blocks=3, schedule=schedule, land_at_exit=True)
    assert xqa.error(out, case.expected()) < 3e-3


def test_a_block_alone_is_as_before():
    case = xqa.Verification([200], [8], [reference.visible_drafts("causal", 8)])
    out, _ = case.run()
    assert xqa.error(out, case.expected()) < 3e-3
