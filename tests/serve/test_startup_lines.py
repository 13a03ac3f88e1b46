"""Every log line of a start is read in its exact wording, and in no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120.integration.serve.profile import load_profile
from sm120.integration.serve.startup import assert_startup, passed

LOGS = Path(__file__).parent / "startup_logs"


NAMES = ["flash-next", "qwen38-27b-dflash2"]


def table(name: str, log: str, **options):
    return {row.name: row for row in assert_startup(load_profile(name), log, **options)}


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_needed_and_its_wording_too(name):
    lines = (LOGS / f"{name}.log").read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        without = table(name, "".join(lines[:number] + lines[number + 1 :]))
        assert "not seen" in {row.verdict for row in without.values()}, line
        # The same line in other words, with every value still in it.
        other = line[:22] + line[22:].replace("=", " is ").replace("size:", "bytes:").replace("O_DIRECT", "direct I/O")
        other = (
            other.replace("'nixl'", "nixl")
            .replace("initparams", "parameters")
            .replace("Capture", "Captured")
            .replace("Allocating", "Made")
        )
        assert other != line
        reworded = table(name, "".join([*lines[:number], other, *lines[number + 1 :]]))
        assert not passed(list(reworded.values())), line


@pytest.mark.parametrize(
    ("name", "old", "new", "row"),
    [
        ("flash-next", "decode=FlashInferGDNKernel", "decode=TritonGDNKernel", "gdn_decode_kernel"),
        ("flash-next", "extend=FlashInferGDNKernel", "extend=TritonGDNKernel", "gdn_prefill_kernel"),
        ("flash-next", "dtype: torch.float8_e4m3fn", "dtype: torch.bfloat16", "kv_dtype"),
        ("flash-next", "max_mamba_cache_size: 24", "max_mamba_cache_size: 12", "mamba_slots"),
        ("flash-next", "ssm_state_cache size: 0.00GB", "ssm_state_cache size: 1.05GB", "intermediate_ssm pool, GiB"),
        ("flash-next", " bytes\n", "0 bytes\n", "recover window, bytes"),
        ("flash-next", "KV + INDEXER(k-only) + MAMBA", "KV + INDEXER(k-only)", "hicache_pools"),
        ("flash-next", "'use_uring': 'true'}", "'use_aio': 'true'}", "storage_queue"),
        ("flash-next", "'nixl' (", "'file' (", "storage_backend"),
        ("qwen38-27b-dflash2", "decode_backend=trtllm_mha", "decode_backend=triton", "decode_backend"),
        ("qwen38-27b-dflash2", "prefill_backend=flashinfer", "prefill_backend=fa3", "prefill_backend"),
        ("qwen38-27b-dflash2", "block_size=8", "block_size=16", "draft_block_size"),
        ("qwen38-27b-dflash2", "draft_window_size=2048", "draft_window_size=None", "draft_window_size"),
        ("qwen38-27b-dflash2", "attention_backend=flashinfer, model", "attention_backend=triton, model",
         "draft_attention_backend"),
    ],
)  # fmt: skip
def test_another_value_is_different(name, old, new, row):
    log = (LOGS / f"{name}.log").read_text()
    assert old in log
    assert table(name, log.replace(old, new))[row].verdict in ("DIFFERENT", "not seen")
    if row != "draft_window_size":
        assert table(name, log.replace(old, new))[row].verdict == "DIFFERENT"
