"""Stands in for: a fix of upstream, not for the accelerator: eager extend casts given embeddings to bfloat16.

`ModelRunner._extend_forward_kwargs` calls `input_embeds.bfloat16()` whatever the model's dtype, so DFLASH dies on any
other. Here the result is cast back to what the caller gave. It steps aside for a tree whose method no longer names
bfloat16 (the patch dflash-input-embeds-dtype); delete this file once that patch is in every supported tree.
"""

import functools
from types import ModuleType
from typing import Any

from .hook import after, replace


@after("sglang.srt.model_executor.model_runner")
def keep_dtype(module: ModuleType) -> None:
    runner = module.ModelRunner
    method = getattr(runner, "_extend_forward_kwargs", None)
    if method is not None and "bfloat16" not in method.__code__.co_names:
        return

    @functools.wraps(method or keep_dtype)
    def kwargs_in_given_dtype(self: Any, forward_batch: Any, *arguments: Any, **options: Any) -> Any:
        result = original(self, forward_batch, *arguments, **options)
        if forward_batch.input_embeds is not None:
            result["input_embeds"] = forward_batch.input_embeds
        return result

    original = replace(runner, "_extend_forward_kwargs", kwargs_in_given_dtype)
