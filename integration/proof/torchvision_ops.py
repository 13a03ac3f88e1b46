"""Stands in for: torchvision's compiled operators beside a CPU build of torch.

torchvision registers fake kernels for its own operators at import, and dies when the operators themselves are
not declared because its CUDA extension could not load. Declaring the two schemas is enough; nothing calls them.
"""

import torch

try:
    torch.ops.torchvision.nms  # noqa: B018
except AttributeError:
    _library = torch.library.Library("torchvision", "DEF")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
