"""Evidence about the QSA kernels: static records of the sm_120a machine code, and times on a device that has one.

python -m sm120.kernels.qsa.bench             # a table (--json: JSON), only when its tests pass in the same run
python -m sm120.kernels.qsa.bench --static    # writes static_roofline.json from a fresh sm_120a build, and shows it
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120.kernels._kit import bench_command, cold_timing, compilers, machine_code, static_estimate

HERE = Path(__file__).parent
GOLDEN = HERE / "static_roofline.json"
# Flash-Next: 24 query heads over 2 KV heads of 256; a full selection is the budget and the causal tail.
QUERY_HEADS, KV_HEADS, HEAD_DIM, SELECTED, SPLITS = 24, 2, 256, 2051, 8
ROWS = 4
SCRATCH_PAGE = 64


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel: what is specialised, and how many bytes a launch of it moves."""

    name: str
    module: str
    function: str
    signature: dict[str, str]
    constexprs: dict[str, object]
    warps: int
    bytes_moved: int
    tokens_per_iteration: int = 0

    def compile(self) -> tuple[machine_code.KernelCode, compilers.Cubin]:
        # A selection is 2051 or 2055 tokens wide: its stride is no multiple of 16, and floats have none.
        scalars = {name for name, kind in self.signature.items() if kind == "fp32"}
        scalars |= {"width", "stride_slot_row", "stride_index_row"}
        cubin = compilers.triton(
            self.module,
            self.function,
            signature=self.signature,
            constexprs=self.constexprs,
            aligned=[name for name in self.signature if name not in scalars],
            num_warps=self.warps,
            num_stages=1 if "naive" not in self.name else 2,
        )
        return machine_code.only(cubin), cubin

    def record(self) -> dict[str, Any]:
        """One object of static_roofline.json; `warp_instructions_per_token` is of the hot loop, 0 without one."""
        code, cubin = self.compile()
        row = static_estimate.record(code, cubin, self.warps * 32, self.bytes_moved)
        row["kernel"] = self.name
        per_token = 0.0
        if self.tokens_per_iteration:
            per_token = row["hot_loop"]["instructions"] * self.warps / self.tokens_per_iteration
        row["warp_instructions_per_token"] = round(per_token, 1)
        return row


def bytes_per_row(pool_bytes: int, head_dim: int = HEAD_DIM) -> dict[str, int]:
    """Bytes of KV and index traffic of one query row: read in place, and gathered to a bf16 scratch first.

    In place: the selected rows once, and index, table entry and slot (read once a KV head) of every token.
    Gathered: the selected rows, a bf16 copy written in whole pages, the copy read back, index and table entry.
    """
    values = 2 * KV_HEADS * head_dim
    in_place = SELECTED * (values * pool_bytes + 4 * 3 + 4 * KV_HEADS)
    padded = -(-SELECTED // SCRATCH_PAGE) * SCRATCH_PAGE
    gathered = SELECTED * (values * pool_bytes + 4 * 2 * KV_HEADS) + padded * values * 2 + SELECTED * values * 2
    return {"in_place": in_place, "gathered": gathered}


def attention_variant(name: str, pool: str, splits: int, block_n: int, warps: int, head_dim: int = HEAD_DIM) -> Variant:
    paired = pool == "fp8e4nv"
    strides = ("q_row", "q_head", "k_slot", "k_head", "v_slot", "v_head", "slot_row")
    pool_bytes = 1 if paired else 2
    split_traffic = 2 * splits * QUERY_HEADS * (head_dim + 1) * 4 if splits > 1 else 0
    return Variant(
        name=name,
        module="sm120.kernels.qsa.triton_sparse_gqa",
        function="_sparse_gqa",
        signature={
            "q": "*bf16",
            "k": f"*{pool}",
            "v": "*i16" if paired else f"*{pool}",
            "slots": "*i32",
            "counts": "*i32",
            "out": "*bf16",
            "partial": "*fp32" if splits > 1 else "*bf16",
            "lse": "*fp32" if splits > 1 else "*bf16",
            "scale_log2": "fp32",
            "v_scale": "fp32",
            **{f"stride_{stride}": "i32" for stride in strides},
        },
        constexprs={
            "GROUP": QUERY_HEADS // KV_HEADS,
            "BLOCK_M": 16,
            "BLOCK_N": block_n,
            "HEAD_DIM": head_dim,
            "SPLITS": splits,
            "PAIRED_VALUES": paired,
        },
        warps=warps,
        bytes_moved=ROWS * (bytes_per_row(pool_bytes, head_dim)["in_place"] + split_traffic),
        tokens_per_iteration=block_n,
    )


def naive_variant(name: str, pool: str, block_n: int, warps: int) -> Variant:
    strides = ("q_row", "q_head", "k_slot", "k_head", "v_slot", "v_head", "slot_row")
    return Variant(
        name=name,
        module="sm120.kernels.qsa.naive_sparse_gqa",
        function="naive_sparse_gqa",
        signature={
            "q": "*bf16",
            "k": f"*{pool}",
            "v": f"*{pool}",
            "slots": "*i32",
            "out": "*bf16",
            "scale": "fp32",
            "width": "i32",
            **{f"stride_{stride}": "i32" for stride in strides},
        },
        constexprs={
            "GROUP": QUERY_HEADS // KV_HEADS,
            "BLOCK_M": 16,
            "BLOCK_N": block_n,
            "HEAD_DIM": HEAD_DIM,
        },
        warps=warps,
        bytes_moved=ROWS * bytes_per_row(1 if pool == "fp8e4nv" else 2)["in_place"],
        tokens_per_iteration=block_n,
    )


def shipped() -> list[Variant]:
    """Every form that the default launch configurations of Flash-Next use, in the order of the budgets."""
    from sm120.kernels.qsa.triton_sparse_gqa import FP8_CONFIG, WIDE_CONFIG

    table = {"indices": "*i32", "lengths": "*i32", "table": "*i32", "table_rows": "*i32"}
    return [
        attention_variant("decode_fp8", "fp8e4nv", SPLITS, *FP8_CONFIG),
        attention_variant("prefill_fp8", "fp8e4nv", 1, *FP8_CONFIG),
        attention_variant("decode_bf16", "bf16", SPLITS, *WIDE_CONFIG),
        attention_variant("prefill_bf16", "bf16", 1, *WIDE_CONFIG),
        attention_variant("decode_fp8_dim128", "fp8e4nv", SPLITS, FP8_CONFIG.block_n, FP8_CONFIG.num_warps, 128),
        Variant(
            "combine",
            "sm120.kernels.qsa.triton_sparse_gqa",
            "_combine",
            {"partial": "*fp32", "lse": "*fp32", "out": "*bf16"},
            {"SPLITS": SPLITS, "HEAD_DIM": HEAD_DIM},
            4,
            ROWS * QUERY_HEADS * (SPLITS * (HEAD_DIM + 1) * 4 + HEAD_DIM * 2),
        ),
        Variant(
            "select_slots",
            "sm120.kernels.qsa.triton_sparse_gqa",
            "_select_slots",
            {
                **table,
                "slots": "*i32",
                "counts": "*i32",
                "width": "i32",
                "stride_index_row": "i32",
                "stride_table_row": "i32",
            },
            {"HAS_TABLE": True, "BLOCK": 4096},
            8,
            ROWS * SELECTED * 12,
        ),
        Variant(
            "block_topk",
            "sm120.kernels.qsa.triton_block_topk",
            "_block_topk",
            {
                "scores": "*fp32",
                "row_starts": "*i32",
                "lengths": "*i32",
                "out": "*i32",
                "topk": "i32",
                "stride_row": "i32",
            },
            {"OUT_BLOCK": 512, "BINS": 256, "BLOCK": 4096},
            16,
            ROWS * (5 * 131072 * 4 + 512 * 4),
        ),
    ]


def yardsticks() -> list[Variant]:
    """The straightforward kernel with the tile of ours and with its own best ones."""
    return [
        naive_variant("naive_fp8_64x4", "fp8e4nv", 64, 4),
        naive_variant("naive_fp8_32x4", "fp8e4nv", 32, 4),
        naive_variant("naive_fp8_32x8", "fp8e4nv", 32, 8),
        naive_variant("naive_bf16_32x4", "bf16", 32, 4),
    ]


def static_records() -> list[dict[str, Any]]:
    return [variant.record() for variant in [*shipped(), *yardsticks()]]


def report(records: list[dict[str, Any]]) -> str:
    lines = [
        static_estimate.LABEL,
        "| kernel | registers | spills | shared | warps of 48 | warp instructions per token |",
        "|---|---|---|---|---|---|",
    ]
    for row in records:
        warps = row["occupancy"]["warps_per_sm"]
        lines.append(
            f"| {row['kernel']} | {row['registers']} | {row['spills']} | {row['shared_bytes']} | {warps} "
            f"| {row['warp_instructions_per_token'] or '-'} |"
        )
    for pool, size in (("FP8", 1), ("bf16", 2)):
        moved = bytes_per_row(size)
        share = moved["in_place"] / moved["gathered"]
        lines.append(
            f"{pool} pool, bytes per query row: {moved['in_place']:,} in place, "
            f"{moved['gathered']:,} gathered ({share:.0%})"
        )
    return "\n".join(lines)


def measure(slots: int = 262_144, context: int = 65_536) -> list[dict[str, Any]]:
    """Median, least and greatest microseconds of one decode call with a cold L2, a pool at a time, on device 0.

    `slots` of the pool hold ROWS requests of `context` tokens, of which each row attends SELECTED.
    """
    import torch

    from sm120.kernels.qsa import op

    generator = torch.Generator(device="cuda").manual_seed(0)
    shuffled = lambda count: torch.randperm(count, device="cuda", generator=generator)  # noqa: E731
    measured = []
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        pool = torch.randn(slots, KV_HEADS, HEAD_DIM, device="cuda", generator=generator).to(dtype)
        q = torch.randn(ROWS, QUERY_HEADS, HEAD_DIM, device="cuda", generator=generator).bfloat16()
        table = shuffled(slots)[: ROWS * context].reshape(ROWS, -1).int()
        indices = torch.stack([shuffled(context)[:SELECTED] for _ in range(ROWS)]).int()
        lengths = torch.full((ROWS,), context, dtype=torch.int32, device="cuda")
        rows = torch.arange(ROWS, dtype=torch.int32, device="cuda")
        times = cold_timing.measure(
            lambda: op.attention(q, pool, pool, indices, lengths, table, rows, HEAD_DIM**-0.5)  # noqa: B023
        )
        measured.append({"pool": str(dtype), "rows": ROWS, "tokens": SELECTED, **times})
    return measured


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit status."""
    return bench_command.run(arguments, HERE, static_records=static_records, measure=measure, report=report)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
