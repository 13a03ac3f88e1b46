"""Lets transformers import beside a CPU build of torch: import this before it.

torchvision cannot load its compiled operators there: it registers fakes for two of them at import and dies when they
are not declared; nothing calls them here.
"""

import torch

if not hasattr(torch.ops.torchvision, "nms"):
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
