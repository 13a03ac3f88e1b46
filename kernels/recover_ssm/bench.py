"""Time verification and recovery on an SM120 device, or record what their machine code says without one.

python -m sm120.kernels.recover_ssm.bench             # a table (--json: JSON), only when its tests pass in the same run
python -m sm120.kernels.recover_ssm.bench --static    # writes static_roofline.json from a fresh sm_120a build
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm120.kernels._kit import bench_command, cold_timing, compilers, machine_code, static_estimate

FOLDER = Path(__file__).parent
MODULE = "sm120.kernels.recover_ssm.triton_recover"
# Flash-Next and 27B have the same heads; they differ in layers and in the dtype of the state.
HEADS = dict(H=16, HV=48, K=128, V=128)
BLOCK_V = 8
BATCH, DRAFTS = 4, 4  # the shape of every static record
STATE_ITEMSIZE = {"fp32": 4, "bf16": 2}
STATES_MOVED = {"verify": 1, "recover": 2}
BATCHES = (1, 4, 16)

_KEPT = {"keep_k": "*bf16", "keep_v": "*bf16", "keep_g": "*fp32", "keep_beta": "*fp32", "window_rows": "*i32"}
_STRIDES = [
    f"stride_{name}{axis}" for name, axes in zip("qkvab", ("bth",) * 3 + ("bt",) * 2, strict=True) for axis in axes
]
SIGNATURES = {
    "verify": {
        **dict.fromkeys(("q", "k", "v", "a", "b", "out"), "*bf16"),
        **_KEPT,
        **dict.fromkeys(("A_log", "dt_bias"), "*fp32"),
        "state_indices": "*i32",
        **dict.fromkeys(("T", "num_slots", "num_rows", "depth", *_STRIDES), "i32"),
        "scale": "fp32",
        "stride_slot": "i64",
    },
    "recover": {
        **_KEPT,
        "slots": "*i32",
        **dict.fromkeys(("last_steps", "track_slots", "track_steps"), "*i64"),
        **dict.fromkeys(("num_slots", "num_rows", "depth"), "i32"),
        **dict.fromkeys(("stride_layer", "stride_slot"), "i64"),
    },
}
CONSTEXPRS = {"verify": dict(KEEP=True, HAS_ROWS=True), "recover": dict(TRACK=True, HAS_ROWS=True)}
NEVER_ALIGNED = {"T", "num_slots", "num_rows", "depth", "scale", "stride_ab", "stride_at", "stride_bb", "stride_bt"}


def compile_for_device(kernel: str, state: str, module: str = MODULE) -> compilers.Cubin:
    """One shipped kernel ("verify" or "recover") for an "fp32" or "bf16" state, as it is launched on a device."""
    signature = {**SIGNATURES[kernel], "state": f"*{state}"}
    return compilers.triton(
        module,
        f"_{kernel}_kernel",
        signature=signature,
        constexprs={**HEADS, "BV": BLOCK_V, **CONSTEXPRS[kernel]},
        aligned=[name for name in signature if name not in NEVER_ALIGNED],
        num_warps=1,
        num_stages=3,
    )


def bytes_moved(kernel: str, state: str) -> int:
    """Global traffic of one layer at BATCH x DRAFTS, every accepted: states, draft inputs or kept window, outputs."""
    H, HV, K, V = HEADS.values()
    states = STATES_MOVED[kernel] * BATCH * HV * K * V * STATE_ITEMSIZE[state]
    kept = BATCH * DRAFTS * ((H * K + HV * V) * 2 + 2 * HV * 4)
    inputs = BATCH * DRAFTS * (2 * H * K + HV * V + 2 * HV) * 2
    outputs = BATCH * DRAFTS * HV * V * 2
    return states + kept + (inputs + outputs if kernel == "verify" else 0)


def static_records() -> list[dict[str, Any]]:
    """One static estimate a kernel and dtype, for one layer at BATCH x DRAFTS."""
    records = []
    for kernel in SIGNATURES:
        for state in STATE_ITEMSIZE:
            cubin = compile_for_device(kernel, state)
            record = static_estimate.record(
                machine_code.only(cubin), cubin, threads=32, bytes_moved=bytes_moved(kernel, state)
            )
            shape = {"batch": BATCH, "drafts": DRAFTS, "layers": 1, **HEADS}
            records.append(record | {"kernel": f"{kernel}_{state}", "shape": shape})
    return records


def measure(batches: Sequence[int] = BATCHES) -> list[dict[str, Any]]:
    """Median, least and greatest microseconds of one layer's launch with a cold L2, on device 0."""
    import torch

    from sm120.kernels.recover_ssm import triton_recover

    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for batch in batches:
            inputs, window, state, slots = _problem(batch, dtype)
            arguments = (*inputs, state[0], slots)
            last = torch.full((batch,), DRAFTS - 1, device="cuda")
            layers = triton_recover.DraftWindow(*(x[None] for x in window))
            launches = {
                "verify": lambda: triton_recover.verify_output_only(*arguments, window=window),  # noqa: B023
                "recover": lambda: triton_recover.recover_accepted(state, layers, slots, last),  # noqa: B023
            }
            for name, launch in launches.items():
                shape = {"kernel": name, "state": str(dtype), "batch": batch, "drafts": DRAFTS}
                rows.append(shape | cold_timing.measure(launch))
    return rows


def _problem(batch: int, dtype: Any) -> tuple[Any, Any, Any, Any]:
    import torch

    from sm120.kernels.recover_ssm import triton_recover

    H, HV, K, V = HEADS.values()
    generator = torch.Generator("cuda").manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, device="cuda", generator=generator)  # noqa: E731
    bf16 = lambda *shape: normal(batch, DRAFTS, *shape).bfloat16()  # noqa: E731
    arguments = (bf16(H, K), bf16(H, K), bf16(HV, V), bf16(HV), bf16(HV), normal(HV), normal(HV))
    window = triton_recover.DraftWindow.zeros(
        batch, DRAFTS, num_k_heads=H, num_v_heads=HV, head_k_dim=K, head_v_dim=V, dtype=torch.bfloat16, device="cuda"
    )
    state = normal(1, batch + 1, HV, V, K).to(dtype)
    return arguments, window, state, torch.arange(1, batch + 1, dtype=torch.int32, device="cuda")


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    return bench_command.run(arguments, FOLDER, static_records=static_records, measure=measure)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
