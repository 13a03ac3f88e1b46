"""Stands in for: the list of platforms on which upstream allows DFLASH.

Only where the speculative arguments are resolved, the platform answers as one of upstream's out-of-tree platforms would
that supports the algorithm with the Triton draft backend. Everywhere else it is what it is.
"""

from types import ModuleType
from typing import Any

from .hook import StandInRefused, after, replace


@after("sglang.srt.arg_groups.speculative_hook")
def allow_dflash(module: ModuleType) -> None:
    real = replace(module, "current_platform", None)
    for name in (
        "is_out_of_tree",
        "supports_speculative_algorithm",
        "supports_speculative_draft_attention_backend",
        "get_default_speculative_draft_attention_backend",
    ):
        if not hasattr(real, name):
            raise StandInRefused(f"platforms have no {name} any more")

    class Platform:
        def is_out_of_tree(self) -> bool:
            return True

        def supports_speculative_algorithm(self, algorithm: str) -> bool:
            return True

        def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
            return backend == "triton"

        def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
            return "triton"

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    module.current_platform = Platform()
