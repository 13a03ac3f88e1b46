"""The reference against numbers worked out by hand."""

import torch

from sm120.kernels._template import reference


def test_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    assert reference.scale_rows(x, torch.tensor([2.0, 0.5])).tolist() == [[2.0, 4.0], [1.5, -2.0]]
