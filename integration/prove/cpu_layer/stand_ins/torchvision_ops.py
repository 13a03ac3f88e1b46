"""Stands in for: torchvision's compiled operators, which cannot load beside a CPU build of torch.

torchvision registers fake kernels for its own operators at import and dies when the operators are not declared.
Declaring the two schemas is enough; a call of either still fails loudly. Beside the torch that it was built for, as in
the cuda flavor, torchvision declares them itself, and a second declaration would end the process: so this waits until
torchvision has tried.
"""

from types import ModuleType

from .hook import after

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@after("torchvision.extension")
def declare_schemas(extension: ModuleType) -> None:
    import torch

    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if not missing:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in missing:
        library.define(name + SCHEMA)
    # The declarations live as long as the library object.
    torch.library._torchvision_schemas = library  # type: ignore[attr-defined]
