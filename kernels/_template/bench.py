"""Time the kernel on an SM120 device, or record what its machine code says without one.

python -m sm120.kernels._template.bench             # a table (--json: JSON), only when its tests pass in the same run
python -m sm120.kernels._template.bench --static    # writes static_roofline.json from a fresh sm_120a build
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm120.kernels._kit import bench_command, cold_timing, compilers, machine_code, static_estimate

FOLDER = Path(__file__).parent
ROWS, COLUMNS = 4096, 4096  # the shape of every static record
SHAPES = [(1, 4096), (64, 4096), (4096, 4096)]


def compile_for_device() -> compilers.Cubin:
    """The shipped kernel for bf16 rows, built by Triton for sm_120a."""
    signature = {"x": "*bf16", "factors": "*fp32", "out": "*bf16", "columns": "i32", "stride_row": "i32"}
    return compilers.triton(
        "sm120.kernels._template.triton_scale_rows",
        "_scale_rows",
        signature=signature,
        constexprs={"BLOCK": 1024},
        aligned=list(signature),
        num_warps=4,
    )


def static_records() -> list[dict[str, Any]]:
    """The kernel's static estimate at ROWS x COLUMNS."""
    cubin = compile_for_device()
    moved = 2 * 2 * ROWS * COLUMNS + 4 * ROWS
    row = static_estimate.record(machine_code.only(cubin), cubin, threads=128, bytes_moved=moved)
    return [row | {"kernel": "scale_rows", "shape": {"rows": ROWS, "columns": COLUMNS}}]


def measure(shapes: Sequence[tuple[int, int]] = SHAPES) -> list[dict[str, Any]]:
    """Median, least and greatest microseconds of one launch with a cold L2, a shape at a time, on device 0."""
    import torch

    from sm120.kernels._template.triton_scale_rows import scale_rows

    rows = []
    for count, columns in shapes:
        generator = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(count, columns, device="cuda", generator=generator).bfloat16()
        factors = torch.randn(count, device="cuda", generator=generator)
        rows.append({"rows": count, "columns": columns, **cold_timing.measure(lambda: scale_rows(x, factors))})  # noqa: B023
    return rows


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    return bench_command.run(arguments, FOLDER, static_records=static_records, measure=measure)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
