"""The CPU build under AddressSanitizer and UBSan: no read or write outside its tensors, no undefined arithmetic."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sm120.kernels._kit import sanitizers

SCRIPT = """
import sys
from sm120.kernels._kit.host_library import SCHEDULES
from sm120.kernels._kit.host_library import Mutation
sys.path.insert(0, sys.argv[2])
from mrope_cpu_build import Case, library, on_cpu
from mrope_oracle import assert_right
CORE = "fused_qk_norm_mrope.cuh"
PARTIAL, FULL = "mrope_bf16_f32_d64_r32_a3_neox", "mrope_bf16_f32_d128_r128_a3_neox"
GPTJ = "mrope_bf16_same_d128_r128_a1_gptj"
fault = Mutation("row", CORE, "kChunk * (rotating ? kRotating : kLanes - kRotating)", "kChunk * 8 * kLanes") \\
    if sys.argv[1] == "fault" else None
for name in [PARTIAL] if fault else [PARTIAL, FULL, GPTJ]:
    built = library(fault, name)
    for tokens in (1, 5):
        for schedule in SCHEDULES:
            assert_right(Case(name, tokens=tokens), on_cpu(built, schedule))
print("clean")
"""


def run(mode: str) -> subprocess.CompletedProcess[str]:
    return sanitizers.run_python(["-c", SCRIPT, mode, str(Path(__file__).parent)], timeout=400)


def test_no_finding() -> None:
    done = run("kernel")
    assert done.returncode == 0 and done.stdout.strip().endswith("clean"), done.stderr[-3000:]


def test_a_chunk_outside_the_row_is_found() -> None:
    done = run("fault")
    assert done.returncode != 0 and any(word in done.stderr for word in sanitizers.FINDINGS), done.stderr[-2000:]
