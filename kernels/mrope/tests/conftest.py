"""Lets transformers be imported beside a CPU build of torch, where torchvision cannot load its compiled operators.

torchvision registers fakes for two operators at import and dies when they are not declared; nothing calls them here.
"""

import torch

if not hasattr(torch.ops.torchvision, "nms"):
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
