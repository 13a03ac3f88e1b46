"""Stands in for: page-locked copies of small host tensors, such as the mask of state snapshots at each decode step.

`Tensor.pin_memory()` asks for an accelerator's host allocator; here the tensor stays where it is.
"""

from types import ModuleType

from .hook import after, replace


@after("torch")
def tensors_stay_where_they_are(module: ModuleType) -> None:
    replace(module.Tensor, "pin_memory", lambda self, device=None: self)
