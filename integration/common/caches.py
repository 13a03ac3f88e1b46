"""Where programs keep what they can make again: the user's cache folder, or ours where the home is read-only."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path | None:
    """The user's cache folder (XDG_CACHE_HOME, else ~/.cache); None where it can neither be written to nor made."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return folder if there.is_dir() and os.access(there, os.W_OK) else None


def library_caches(folder: Path) -> dict[str, str]:
    """Variables that send the caches of the runtime's libraries below `folder`; none where the home takes them.

    Some of them make their folder when they are imported, so that with a read-only home nothing would start. What the
    user has set stays.
    """
    if user_cache() is not None:
        return {}
    wanted = {
        "XDG_CACHE_HOME": folder,
        "SGLANG_CACHE_DIR": folder / "sglang",  # SGLang sends Inductor's, Triton's and FlashInfer's there
        "SGLANG_JIT_CACHE_DIR": folder / "sglang-jit",  # but not that of its own kernels
        "FLASHINFER_WORKSPACE_BASE": folder / "flashinfer",
        "TVM_FFI_CACHE_DIR": folder / "tvm-ffi",
        "TRITON_CACHE_DIR": folder / "triton",
        "HF_HOME": folder / "huggingface",
        "MPLCONFIGDIR": folder / "matplotlib",
    }
    return {name: str(path) for name, path in wanted.items() if name not in os.environ}
