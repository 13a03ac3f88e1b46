"""Probe of dflash-verify-seeds: with deterministic inference a request's seed decides what DFLASH verify draws."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.arg_groups import speculative_hook
from sglang.srt.speculative import dflash_worker_v2

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp

SEEDED = [{"temperature": 0.8, "sampling_seed": 7}, {"temperature": 2.0, "sampling_seed": 8}]


@pytest.fixture
def deterministic():
    with vp.published_config(enable_deterministic_inference=True):
        yield


def coins(samplings: list[dict], generator_seed: int, committed: int = 0, path: str = "dflash") -> torch.Tensor:
    """The uniform numbers `[bs, width + 1]` of one verify after `committed` more tokens."""
    torch.manual_seed(generator_seed)
    run, _ = vp.admit(path, samplings)
    run.commit([[1] * committed for _ in samplings])
    run.verify([vp.chain([request.tokens[-1], 1, 4, 1]) for request in run.requests])
    return run.coins[0]


def test_the_same_seed_draws_the_same(deterministic):
    assert torch.equal(coins(SEEDED, 1), coins(SEEDED, 2)), "the device's generator decides, not the seed"


def test_it_draws_what_eagle_would(deterministic):
    assert torch.equal(coins(SEEDED, 1), coins(SEEDED, 2, path="eagle"))


def test_a_neighbour_changes_nothing(deterministic):
    assert torch.equal(coins(SEEDED, 1)[1:], coins(SEEDED[1:], 2)), "a neighbour in the batch changes the draws"


def test_seeds_and_positions_differ(deterministic):
    drawn = coins(SEEDED, 1)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn, coins(SEEDED, 1, committed=1))


def test_without_the_flag_a_verify_draws_anew():
    with vp.published_config():
        assert not torch.equal(coins(SEEDED, 1), coins(SEEDED, 2))


def test_dspark_is_refused():
    """It samples its draft too, without a seed."""
    arguments = SimpleNamespace(device="cuda", enable_deterministic_inference=True, attn_dp_size=1)
    arguments.pp_size = 1
    arguments.speculative_draft_model_path = None
    try:
        speculative_hook._handle_dspark(arguments)
    except ValueError as error:
        assert "per-request seeds" in str(error)
    except AttributeError:
        pytest.fail("DSPARK is admitted with deterministic inference")


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("draft", ["plain", "candidate_selector", "lilicorr"])
def test_a_selector_is_refused(draft, flag):
    check = getattr(dflash_worker_v2, "_check_seedable", None)
    assert check is not None, "the release admits every draft"
    model = SimpleNamespace(candidate_selector=None, lilicorr=None)
    if draft != "plain":
        setattr(model, draft, torch.nn.Linear(1, 1))
    with vp.published_config(enable_deterministic_inference=flag):
        if flag and draft != "plain":
            with pytest.raises(ValueError, match="per-request seeds"):
                check(model)
        else:
            check(model)
