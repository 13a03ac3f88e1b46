"""The op's CPU path, built from the sources as they are now and not as they were when the package was installed."""

from __future__ import annotations

import os
from pathlib import Path

from sm120.kernels._lib import host_library

FOLDER = Path(__file__).parent.parent
LIBRARY_VARIABLE = "XQA_MASK_HOST_LIBRARY"  # a build to use, such as a sanitized one, instead of making one


class HostBuild:
    """Stands where the `_host` extension stands: same functions, same addresses, a chosen lane schedule."""

    def __init__(self, mutation: host_library.Mutation | None = None) -> None:
        ready = os.environ.get(LIBRARY_VARIABLE)
        if ready and mutation is None:
            self.library = host_library.HostLibrary(Path(ready))
        else:
            self.library = host_library.build(FOLDER / "host_api.cpp", include=[FOLDER], mutation=mutation)
        self.schedule = "forward"

    def _call(self, function: str, *arguments: int) -> None:
        self.library.call(function, *arguments, schedule=self.schedule, seed=11)

    def chain(self, mask: int, cu_seqlens: int, rows: int, batch: int, q_len: int, full: bool) -> None:
        self._call("xqa_mask_chain_host", mask, cu_seqlens, rows, batch, q_len, int(full))

    def tree(self, mask: int, cu_seqlens: int, parents: int, rows: int, batch: int, q_len: int) -> None:
        self._call("xqa_mask_tree_host", mask, cu_seqlens, parents, rows, batch, q_len)

    def matrix(self, mask: int, cu_seqlens: int, visible: int, rows: int, batch: int, q_len: int) -> None:
        self._call("xqa_mask_matrix_host", mask, cu_seqlens, visible, rows, batch, q_len)
