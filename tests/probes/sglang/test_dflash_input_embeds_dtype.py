"""Probe of dflash-input-embeds-dtype: input embeddings reach the model in the model's dtype."""

from inspect import unwrap
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.model_runner import ModelRunner


def extend_kwargs(dtype: torch.dtype, embeds: torch.Tensor, **overrides) -> dict:
    runner = object.__new__(ModelRunner)
    runner.dtype = dtype
    runner.support_pp = False
    runner.is_generation = True
    batch = SimpleNamespace(input_embeds=embeds, replace_embeds=None, replace_positions=None, **overrides)
    # Upstream's own method, whatever stands in for it on this machine.
    return unwrap(ModelRunner._extend_forward_kwargs)(runner, batch, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_embeddings_follow_the_model(dtype):
    embeds = torch.linspace(-3, 3, 24, dtype=dtype).view(3, 8) + torch.tensor(2.0**-7, dtype=dtype)
    got = extend_kwargs(dtype, embeds)["input_embeds"]
    assert got.dtype == dtype
    assert torch.equal(got, embeds), "a model's own dtype must pass through unrounded"


def test_wider_embeddings_are_cast_to_the_model():
    embeds = torch.full((1, 4), 1.0 + 2.0**-9)
    got = extend_kwargs(torch.float16, embeds)["input_embeds"]
    assert got.dtype == torch.float16
    assert torch.equal(got, embeds.half()), "2**-9 fits float16 and does not fit bfloat16"
