"""Probe of sampler-sync-one-rank: sampled tokens are reduced among ranks, and by nobody where there is one rank."""

import multiprocessing
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from sglang.srt.layers import sampler
from sglang.srt.runtime_context import get_context, get_flags, get_parallel

# What the two ranks would sample, each by itself, in a batch of three rows.
SAMPLED = ([7, 3, 5], [3, 9, 5])
AGREED = [3, 3, 5]


def sample(rank, *, attention_ranks, grammars, always, collectives):
    """Tokens of one greedy forward on `rank` of a TP group of two, whose attention TP groups have `attention_ranks`."""
    both = dist.new_group([0, 1])
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    groups = {size: SimpleNamespace(world_size=size, device_group=group) for size, group in ((1, alone), (2, both))}

    def counted(*arguments, **named):
        collectives.append(dist.get_world_size(named.get("group")))
        return reduce(*arguments, **named)

    reduce = dist.all_reduce
    with ExitStack() as stack:
        stack.enter_context(get_context().override_server_args(sampling_backend="pytorch"))
        sizes = {"tp_size": 2, "attn_tp_size": attention_ranks, "attn_dp_size": 2 // attention_ranks, "moe_tp_size": 2}
        members = {"tp_group": groups[2], "attn_tp_group": groups[attention_ranks]}
        stack.enter_context(get_parallel().override(**sizes, **members))
        stack.enter_context(get_flags().dp.override(enabled=attention_ranks == 1))
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(dist, "all_reduce", counted)
        sampler.SYNC_TOKEN_IDS_ACROSS_TP = always
        logits = torch.nn.functional.one_hot(torch.tensor(SAMPLED[rank]), 12).float()
        info = SimpleNamespace(
            is_all_greedy=True,
            has_custom_logit_processor=False,
            grammars=grammars,
            sampling_mask_batch_indices=None,
            sampling_support_logprobs_capture_indices=None,
        )
        output = SimpleNamespace(next_token_logits=logits)
        return sampler.Sampler()(output, info, False, [0] * 3, [None] * 3, torch.arange(3)).tolist()


def run_rank(rank, store, arguments):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    collectives = []
    return sample(rank, **arguments, collectives=collectives), collectives


def on_two_ranks(tmp_path, **arguments):
    """By rank: its tokens, and the sizes of the groups that it reduced in."""
    with multiprocessing.get_context("fork").Pool(2) as ranks:
        told = [(rank, tmp_path / "store", arguments) for rank in (0, 1)]
        return dict(enumerate(ranks.starmap_async(run_rank, told, chunksize=1).get(timeout=60)))


@pytest.mark.parametrize(("grammars", "always"), [([object()], False), (None, True)], ids=["grammar", "asked for"])
def test_two_ranks_agree(tmp_path, grammars, always):
    found = on_two_ranks(tmp_path, attention_ranks=2, grammars=grammars, always=always)
    assert found == {0: (AGREED, [2]), 1: (AGREED, [2])}


@pytest.mark.parametrize(("grammars", "always"), [([object()], False), (None, True)], ids=["grammar", "asked for"])
def test_an_attention_rank_of_its_own_reduces_with_nobody(tmp_path, grammars, always):
    found = on_two_ranks(tmp_path, attention_ranks=1, grammars=grammars, always=always)
    assert found == {rank: (SAMPLED[rank], []) for rank in (0, 1)}


def test_nothing_is_reduced_without_a_reason(tmp_path):
    found = on_two_ranks(tmp_path, attention_ranks=2, grammars=None, always=False)
    assert found == {rank: (SAMPLED[rank], []) for rank in (0, 1)}
