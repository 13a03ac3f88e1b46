"""Time mask packing on an SM120 device, or record what its machine code says without one.

python -m sm120.kernels.xqa_mask.bench             # times, printed only when this kernel's tests pass in the same run
python -m sm120.kernels.xqa_mask.bench --static    # writes static_roofline.json from a fresh sm_120a build
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from sm120.kernels._lib import compilers, machine_code, static_estimate
from sm120.kernels._lib.device import why_no_device

FOLDER = Path(__file__).parent
BATCH, Q_LEN = 64, 8  # the shape of every static record: 64 requests of 8 drafts
ROWS = BATCH * Q_LEN
BYTES_WRITTEN = ROWS * 4
BYTES_READ = {"xqa_mask_chain": 0, "xqa_mask_tree": ROWS * 4, "xqa_mask_matrix": ROWS * Q_LEN}
SHAPES = [(1, 8), (64, 8), (256, 8), (256, 33), (64, 128)]
WARM_UP, ROUNDS, LAUNCHES = 200, 30, 100


def compile_for_device() -> compilers.Cubin:
    """The shipped kernels, built by nvcc for sm_120a."""
    return compilers.nvcc(FOLDER / "xqa_mask.cuh")


def static_records() -> list[dict[str, Any]]:
    """One static estimate a kernel, at BATCH x Q_LEN."""
    cubin = compile_for_device()
    return [
        static_estimate.record(code, cubin, threads=128, bytes_moved=BYTES_WRITTEN + BYTES_READ[name])
        | {"shape": {"batch": BATCH, "q_len": Q_LEN}}
        for name, code in sorted(machine_code.inspect(cubin).items())
    ]


def measure() -> list[dict[str, Any]]:
    """Median, least and greatest microseconds of one launch, a shape at a time, on device 0."""
    import torch

    from sm120.kernels.xqa_mask.op import pack_mask

    rows = []
    for batch, q_len in SHAPES:
        out = pack_mask("causal", q_len, batch=batch, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(LAUNCHES):
                pack_mask("causal", q_len, batch=batch, out=out)
        flush = torch.empty(3 * 128 * 2**20, dtype=torch.uint8, device="cuda")
        times = []
        for index in range(WARM_UP // LAUNCHES + ROUNDS):
            flush.fill_(index % 251)  # evicts the output from L2
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / LAUNCHES)
        kept = times[WARM_UP // LAUNCHES :]
        rows.append(
            {
                "batch": batch,
                "q_len": q_len,
                "us_median": statistics.median(kept),
                "us_min": min(kept),
                "us_max": max(kept),
                "device": torch.cuda.get_device_name(0),
                "clock_mhz": torch.cuda.clock_rate(0),
            }
        )
    return rows


def tests_pass() -> bool:
    """Whether this kernel's tests, those on the device included, pass now."""
    return subprocess.run([sys.executable, "-m", "pytest", "-q", str(FOLDER / "tests")], timeout=1800).returncode == 0


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    if arguments == ["--static"]:
        static_estimate.write_golden(FOLDER / "static_roofline.json", static_records())
        return 0
    if arguments:
        print(f"bench: got {arguments}, needs nothing or --static", file=sys.stderr)
        return 2
    reason = why_no_device()
    if reason is not None:
        print(f"bench: nothing to measure on: {reason}", file=sys.stderr)
        return 1
    if not tests_pass():
        print("bench: this kernel's tests fail; no number is printed", file=sys.stderr)
        return 1
    print(json.dumps(measure(), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
