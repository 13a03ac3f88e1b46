"""Time mask packing on an SM120 device, or record what its machine code says without one.

python -m sm120.kernels.xqa_mask.bench             # times, printed only when this kernel's tests pass in the same run
python -m sm120.kernels.xqa_mask.bench --static    # writes static_roofline.json from a fresh sm_120a build
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sm120.kernels._lib import bench_command, cold_timing, compilers, machine_code, static_estimate

FOLDER = Path(__file__).parent
BATCH, Q_LEN = 64, 8  # the shape of every static record: 64 requests of 8 drafts
ROWS = BATCH * Q_LEN
BYTES_WRITTEN = ROWS * 4
BYTES_READ = {"xqa_mask_chain": 0, "xqa_mask_tree": ROWS * 4, "xqa_mask_matrix": ROWS * Q_LEN}
SHAPES = [(1, 8), (64, 8), (256, 8), (256, 33), (64, 128)]


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
    """Median, least and greatest microseconds of one launch with a cold L2, a shape at a time, on device 0."""
    from sm120.kernels.xqa_mask.op import pack_mask

    rows = []
    for batch, q_len in SHAPES:
        out = pack_mask("causal", q_len, batch=batch, device="cuda")
        times = cold_timing.measure(lambda: pack_mask("causal", q_len, batch=batch, out=out))  # noqa: B023
        rows.append({"batch": batch, "q_len": q_len, **times})
    return rows


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    return bench_command.run(arguments, FOLDER, static_records=static_records, measure=measure)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
