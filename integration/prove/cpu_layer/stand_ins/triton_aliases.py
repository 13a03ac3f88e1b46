"""Stands in for: nothing of the accelerator, but for a limit of Triton's interpreter.

The interpreter replaces `tl.exp` and its like while a kernel runs. flash-linear-attention's kernels call names that
were bound to the originals at import, which then refuse to run outside a compiler. These look the function up when
called.
"""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .hook import after, replace


@after("sglang.kernels.ops.attention.fla.op")
def look_up_late(module: ModuleType) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import triton.language as tl

    for name in ("exp", "exp2", "log", "log2"):
        replace(module, name, _late(tl, name))


def _late(language: ModuleType, name: str) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        return getattr(language, name)(x)

    call.__name__ = name
    return call
