"""Stands in for: `Tensor.record_stream`, by which DFLASH tells CUDA's allocator that another stream uses a tensor.

Memory of a CPU tensor is not handed out again while a reference exists, and PyTorch refuses the call, so it does
nothing.
"""

from types import ModuleType

from .hook import after, replace


@after("sglang.srt.speculative.dflash_worker_v2")
def ignore_record_stream(module: ModuleType) -> None:
    import torch

    replace(torch.Tensor, "record_stream", lambda self, stream: None)
