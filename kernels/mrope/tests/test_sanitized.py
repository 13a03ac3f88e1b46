"""The CPU build under AddressSanitizer and UBSan: no read or write outside its tensors, no undefined arithmetic."""

from __future__ import annotations

import subprocess

from sm120.kernels._lib import sanitizers

SCRIPT = """
import sys
from sm120.kernels._lib.host_library import SCHEDULES
from sm120.kernels._lib.host_library import Mutation
from sm120.kernels.mrope.tests.cpu_build import library
from sm120.kernels.mrope.tests.test_kernel_on_cpu import CORE, GPTJ, PARTIAL, PHASE, assert_right
from sm120.kernels.mrope.tests.cpu_build import Case
fault = Mutation("row", CORE, "kChunk * (rotating ? kRotating : kLanes - kRotating)", "kChunk * 8 * kLanes") \\
    if sys.argv[1] == "fault" else None
for name in [PARTIAL] if fault else [PARTIAL, PHASE, GPTJ]:
    built = library(fault, name)
    for tokens in (1, 5):
        for schedule in SCHEDULES:
            assert_right(Case(name, tokens=tokens), built, schedule)
print("clean")
"""


def run(mode: str) -> subprocess.CompletedProcess[str]:
    return sanitizers.run_python(["-c", SCRIPT, mode], timeout=400)


def test_no_finding() -> None:
    done = run("kernel")
    assert done.returncode == 0 and done.stdout.strip().endswith("clean"), done.stderr[-3000:]


def test_a_chunk_outside_the_row_is_found() -> None:
    done = run("fault")
    assert done.returncode != 0 and any(word in done.stderr for word in sanitizers.FINDINGS), done.stderr[-2000:]
