"""Time the kernel on an SM120 device, or record what its machine code says without one.

python -m sm120.kernels.mrope.bench             # a table (--json: JSON), only when its tests pass in the same run
python -m sm120.kernels.mrope.bench --static    # writes static_roofline.json from a fresh sm_120a build
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm120.kernels._kit import (
    bench_command,
    cold_timing,
    compilers,
    machine_code,
    shipped_entry,
    static_estimate,
    upstream,
)
from sm120.kernels.mrope.axes import axis_map

FOLDER = Path(__file__).parent
THREADS = 128
ELEMENTS_PER_WARP = 32 * 16  # every lane holds sixteen elements
# the shape of every static record: a prefill chunk of Qwen3-VL-30B-A3B's attention
TOKENS, Q_HEADS, KV_HEADS = 4096, 32, 4
MEASURED = [1, 8, 64, 512, 4096]
INSTANTIATION = re.compile(r"kernelI(13__nv_bfloat16|6__half)(f|\w+?)Li(\d+)ELi(\d+)ELi(\d)ELb([01])E")
SCALARS = {"13__nv_bfloat16": "bf16", "6__half": "fp16"}
UPSTREAM = "kernels/jit/csrc/elementwise/fused_qknorm_rope.cuh"


def compile_for_device() -> compilers.Cubin:
    """The shipped kernel in every variant of variants.def, built by nvcc for sm_120a."""
    return compilers.nvcc(FOLDER / "tests" / "mrope_device.cu", include=[FOLDER])


def inspect(cubin: compilers.Cubin) -> dict[str, machine_code.KernelCode]:
    """The kernels of `compile_for_device` by the names of variants.def, such as mrope_bf16_f32_d128_r128_a3_neox."""
    named = {}
    for mangled, code in machine_code.inspect(cubin).items():
        match = INSTANTIATION.search(mangled)
        assert match is not None, f"{mangled} is no instantiation of the kernel"
        scalar, table, d, r, axes, neox = match.groups()
        scalar, table = SCALARS[scalar], "f32" if table == "f" else "same"
        name = f"mrope_{scalar}_{table}_d{d}_r{r}_a{axes}_{'neox' if neox == '1' else 'gptj'}"
        named[name] = dataclasses.replace(code, name=name)
    return named


def compile_upstream(head_dim: int, neox: bool) -> compilers.Cubin:
    """SGLang's one-axis kernel from the pinned wheel, built by the same nvcc with the flags of its own JIT."""
    root, ffi = upstream.package_root("sglang"), upstream.package_root("tvm_ffi")
    if root is None or ffi is None:
        raise FileNotFoundError(upstream.missing_sglang_headers() or "no tvm_ffi package")
    flags = ["-std=c++20", "--use_fast_math", "--expt-relaxed-constexpr", "-DSGL_CUDA_ARCH=1200"]
    flags += [f"-DJIT_HEAD_DIM={head_dim}", f"-DJIT_INTERLEAVE={int(not neox)}", "-DJIT_YARN=0"]
    include = [root / "kernels/jit/include", ffi / "include", ffi / "3rdparty/dlpack/include"]
    return compilers.nvcc(root / UPSTREAM, include=include, flags=flags)


def bytes_moved(variant: str, tokens: int = TOKENS) -> int:
    """Global memory traffic of one launch, each byte counted once: rows in and out, positions, weights, the table."""
    _, _, table, d, r, a, _ = variant.split("_")
    head_dim, rotary_dim, axes = int(d[1:]), int(r[1:]), int(a[1:])
    rows = 2 * 2 * tokens * (Q_HEADS + KV_HEADS) * head_dim
    return rows + 8 * axes * tokens + 2 * 2 * head_dim + tokens * rotary_dim * (4 if table == "f32" else 2)


def upstream_bytes_moved(head_dim: int, tokens: int = TOKENS) -> int:
    """The same for SGLang's kernel and for the launch that makes int32 of int64 positions in front of it."""
    return 2 * 2 * tokens * (Q_HEADS + KV_HEADS) * head_dim + (8 + 4 + 4) * tokens + 2 * 2 * head_dim


def static_records() -> list[dict[str, Any]]:
    """One static estimate for each variant that kernel.toml budgets."""
    cubin = compile_for_device()
    code = inspect(cubin)
    names = [row["kernel"] for row in static_estimate.budgets(FOLDER / "kernel.toml")]
    shape = {"tokens": TOKENS, "q_heads": Q_HEADS, "kv_heads": KV_HEADS}
    return [
        static_estimate.record(code[name], cubin, threads=THREADS, bytes_moved=bytes_moved(name))
        | {"shape": shape, "warp_instructions_per_element": len(code[name].instructions) / ELEMENTS_PER_WARP}
        for name in names
    ]


def measure(counts: Sequence[int] = MEASURED, heads: tuple[int, int] = (Q_HEADS, KV_HEADS)) -> list[dict[str, Any]]:
    """Median, least and greatest microseconds of a three-axis launch with a cold L2, by token count, on device 0."""
    import torch

    shipped = shipped_entry.load(FOLDER, "sglang_fused_qk_norm_mrope.py")
    owners = torch.tensor(axis_map([24, 20, 20], "interleaved", 128))
    packed = shipped.pack_axis_map(types.SimpleNamespace(axis_map=owners))
    rows = []
    for tokens in counts:
        torch.manual_seed(0)
        qkv = torch.randn(tokens, (heads[0] + 2 * heads[1]) * 128, device="cuda").bfloat16()
        weight = torch.ones(128, device="cuda").bfloat16()
        cache = torch.randn(8192, 128, device="cuda")
        positions = torch.randint(0, 8192, (3, tokens), device="cuda")
        arguments = (qkv, weight, weight, positions, cache, packed, *heads, 128, True, 1e-6)
        times = cold_timing.measure(lambda: shipped.fused_qk_norm_mrope(*arguments))  # noqa: B023
        rows.append({"tokens": tokens, **times})
    return rows


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    return bench_command.run(arguments, FOLDER, static_records=static_records, measure=measure)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
