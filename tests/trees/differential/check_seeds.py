"""With deterministic inference a request's seed decides what a verify draws, as it decides plain decoding's draws."""

import pytest
import torch
import verify_paths as vp

SEEDED = [{"temperature": 0.8, "sampling_seed": 7}, {"temperature": 2.0, "sampling_seed": 8}]
# DSPARK samples its draft as well; the patched tree refuses deterministic inference with it.
HONOUR_SEEDS = ["eagle", "ngram", "dflash"]


def draws(path: str, samplings: list[dict], generator_seed: int) -> torch.Tensor:
    """The uniform numbers `[bs, …]` that one verify of the path draws."""
    torch.manual_seed(generator_seed)
    run, _ = vp.admit(path, samplings)
    run.verify([vp.chain([request.tokens[-1], 1, 4, 1]) for request in run.requests])
    return run.coins[0]


def decides(path: str) -> bool:
    """Whether the seeds, and neither the device's generator nor the neighbours, decide the path's draws."""
    with vp.published_config(enable_deterministic_inference=True):
        first, again, alone = draws(path, SEEDED, 1), draws(path, SEEDED, 2), draws(path, SEEDED[1:], 3)
        other = draws(path, [{**one, "sampling_seed": 9} for one in SEEDED], 1)
    return torch.equal(first, again) and torch.equal(first[1:], alone) and not torch.equal(first, other)


@pytest.mark.parametrize("path", HONOUR_SEEDS)
def test_the_seed_decides(path):
    assert decides(path), f"{path}: the draws are not the seed's"
