"""Stands in for: nothing of the accelerator, but for the seconds in which each process of a server imports the same modules.

Upstream spawns them, as a CUDA context does not survive a fork. Here there is none: with PROOF_FORK=1 the scheduler
and the detokenizer are forked from the server once it has imported everything.
"""

import os
from types import ModuleType
from typing import Any

from .hook import after, replace


@after("sglang.srt.entrypoints.engine")
def fork_what_upstream_spawns(module: ModuleType) -> None:
    if os.environ.get("PROOF_FORK") != "1":
        return

    def set_start_method(method: str, *arguments: Any, **options: Any) -> None:
        original("fork" if method == "spawn" else method, *arguments, **options)

    original = replace(module.mp, "set_start_method", set_start_method)
