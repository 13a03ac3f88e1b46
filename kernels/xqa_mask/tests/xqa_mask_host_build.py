"""The CPU build of the shipped kernel, called as SGLang's JIT module is: for tests, and behind the simulated device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from sm120.kernels._kit import host_library

FOLDER = Path(__file__).parent.parent
LIBRARY_VARIABLE = "XQA_MASK_HOST_LIBRARY"  # a build to use, such as a sanitized one, instead of making one


class HostBuild:
    """What `load_jit` returns, on the CPU, under a chosen lane schedule. The launcher's checks are not part of it."""

    def __init__(self, mutation: host_library.Mutation | None = None) -> None:
        ready = os.environ.get(LIBRARY_VARIABLE)
        if ready and mutation is None:
            self.library = host_library.HostLibrary(Path(ready))
        else:
            source = FOLDER / "tests" / "xqa_mask_host.cpp"
            self.library = host_library.build(source, include=[FOLDER], mutation=mutation)
        self.schedule = "forward"

    def xqa_mask_fill(self, mask: torch.Tensor, cu_seqlens: torch.Tensor, q_len: int) -> None:
        batch = cu_seqlens.shape[0] - 1
        arguments = (mask, cu_seqlens, mask.shape[0], batch, q_len)
        self.library.call("xqa_mask_ragged_host", *arguments, schedule=self.schedule, seed=11)
