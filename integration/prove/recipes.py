"""Command-line arguments that a server takes on a CPU, as data to combine: {**DENSE, **standalone(draft)}."""

from pathlib import Path

from sm120.integration.common.storage import Storage
from sm120.integration.prove.server import Argument

# What every server has: no graphs and no overlap on a CPU, and pools as small as the models.
COMMON: dict[str, Argument] = {
    "sampling-backend": "pytorch",
    "disable-overlap-schedule": True,
    "cuda-graph-backend-decode": "disabled",
    "cuda-graph-backend-prefill": "disabled",
    "mem-fraction-static": 0.2,
    "max-running-requests": 8,
    # The first /health is a generation already, and warms up as much as the warm-up request does.
    "skip-server-warmup": True,
    "enable-cache-report": True,
}

# Attention in PyTorch: over twenty times as fast here as interpreted Triton, and right for everything but speculation.
DENSE: dict[str, Argument] = {
    **COMMON,
    "dtype": "float32",
    "attention-backend": "torch_native",
    "max-total-tokens": 512,
}

# Verification of drafts needs the Triton backend's custom masks.
DENSE_TRITON: dict[str, Argument] = {**DENSE, "attention-backend": "triton", "max-total-tokens": 2048}

HYBRID: dict[str, Argument] = {
    **COMMON,
    "dtype": "float16",
    "attention-backend": "triton",
    "max-total-tokens": 512,
    "max-mamba-cache-size": 12,
}

# The same pools with state snapshots, which paged prefix caching of a hybrid needs.
HYBRID_PAGED: dict[str, Argument] = {
    **HYBRID,
    "page-size": 64,
    "mamba-radix-cache-strategy": "extra_buffer",
    "mamba-track-interval": 64,
}

# The state's convolution window follows the model's dtype only when told to.
HYBRID_ENVIRONMENT = {"SGLANG_MAMBA_CONV_DTYPE": "float16"}


def hicache(storage: Storage, *, page_size: int) -> dict[str, Argument]:
    """Host pool of four times the device pool, every page written through to `storage` by NIXL."""
    return {
        "page-size": page_size,
        "enable-hierarchical-cache": True,
        "hicache-ratio": 4,
        "hicache-io-backend": "direct",
        "hicache-mem-layout": "page_first_direct",
        "hicache-write-policy": "write_through",
        "hicache-storage-backend": "nixl",
        "hicache-storage-prefetch-policy": "wait_complete",
        "hicache-storage-backend-extra-config": storage.extra_config(),
    }


def standalone(draft: Path) -> dict[str, Argument]:
    """Three draft steps of a small language model, one chain."""
    return {
        "speculative-algorithm": "STANDALONE",
        "speculative-draft-model-path": str(draft),
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }


def dflash(draft: Path) -> dict[str, Argument]:
    """Blocks of four by a DFLASH draft."""
    return {
        "speculative-algorithm": "DFLASH",
        "speculative-draft-model-path": str(draft),
        "speculative-num-draft-tokens": 4,
    }


def nextn() -> dict[str, Argument]:
    """Three draft steps of the target's own MTP head."""
    return {
        "speculative-algorithm": "NEXTN",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }
