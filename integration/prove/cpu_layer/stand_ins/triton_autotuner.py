"""Stands in for: timing a kernel's configurations, which a CPU has nothing to time with.

Every autotuned kernel keeps its first configuration. A test through here says nothing about the others.
"""

import os
from types import ModuleType
from typing import Any

from .hook import after, replace


@after("triton.runtime.autotuner")
def keep_first_configuration(module: ModuleType) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return

    def __init__(self: Any, fn: Any, arg_names: Any, configs: Any, *arguments: Any, **options: Any) -> None:
        original(self, fn, arg_names, configs[:1] if configs else configs, *arguments, **options)

    original = replace(module.Autotuner, "__init__", __init__)
