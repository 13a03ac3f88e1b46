"""Stands in for: torchvision's compiled operators, which cannot load beside a CPU build of torch.

torchvision registers fake kernels for its own operators at import and dies when the operators are not declared.
Declaring the two schemas is enough; a call of either still fails loudly.
"""

from .hook import before


@before("torchvision")
def declare_schemas() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        library.define(schema)
    # The declarations live as long as the library object.
    torch.library._torchvision_schemas = library  # type: ignore[attr-defined]
