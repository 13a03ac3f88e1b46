"""Time mask packing on an SM120 device, or record what its machine code says without one.

python -m sm120.kernels.xqa_mask.bench             # a table (--json: JSON), only when its tests pass in the same run
python -m sm120.kernels.xqa_mask.bench --static    # writes static_roofline.json from a fresh sm_120a build
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm120.kernels._kit import bench_command, cold_timing, compilers, machine_code, shipped_entry, static_estimate

FOLDER = Path(__file__).parent
BATCH, Q_LEN = 64, 8  # the shape of every static record: 64 requests of 8 drafts
ROWS = BATCH * Q_LEN
BYTES_MOVED = ROWS * 4 + (BATCH + 1) * 4
SHAPES = [(1, 8), (64, 8), (256, 8), (256, 33), (64, 128)]


def compile_for_device() -> compilers.Cubin:
    """The shipped kernel, built by nvcc for sm_120a."""
    return compilers.nvcc(FOLDER / "xqa_mask.cuh")


def static_records() -> list[dict[str, Any]]:
    """The kernel's static estimate, at BATCH x Q_LEN."""
    cubin = compile_for_device()
    return [
        static_estimate.record(code, cubin, threads=128, bytes_moved=BYTES_MOVED)
        | {"shape": {"batch": BATCH, "q_len": Q_LEN}}
        for code in machine_code.inspect(cubin).values()
    ]


def measure(shapes: Sequence[tuple[int, int]] = SHAPES) -> list[dict[str, Any]]:
    """Median, least and greatest microseconds of one launch with a cold L2, a shape at a time, on device 0."""
    import torch

    fill_xqa_mask = shipped_entry.load(FOLDER, "sglang_op.py").fill_xqa_mask
    rows = []
    for batch, q_len in shapes:
        offsets = torch.arange(0, batch * q_len + 1, q_len, dtype=torch.int32, device="cuda")
        mask = torch.empty(batch * q_len, 2 * -(-q_len // 32), dtype=torch.uint16, device="cuda")
        times = cold_timing.measure(lambda: fill_xqa_mask(mask, offsets, q_len))  # noqa: B023
        rows.append({"batch": batch, "q_len": q_len, **times})
    return rows


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    return bench_command.run(arguments, FOLDER, static_records=static_records, measure=measure)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
