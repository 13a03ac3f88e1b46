"""Lets transformers import beside a CPU build of torch: import this before it.

torchvision cannot load its compiled operators there: it registers fakes for two of them at import and dies when they
are not declared; nothing calls them here. Beside the torch that it was built for it declares them itself, and a second
declaration would end the process: so its library is tried first.
"""

import contextlib
import importlib.util
from pathlib import Path

import torch

_torchvision = importlib.util.find_spec("torchvision")
if _torchvision is not None and _torchvision.origin is not None:
    with contextlib.suppress(OSError):  # not the torch that it was built for
        torch.ops.load_library(str(Path(_torchvision.origin).parent / "_C.so"))

if not hasattr(torch.ops.torchvision, "nms"):
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
