"""Drives the released scheduler's sampling code without a model: plain decoding and every speculative verify path.

A request is a prompt, the tokens committed so far, and sampling parameters; a model is any function from a token
history to logits. Both sides run upstream's own code: penalizers, logit adjustments, verify samplers, and the
scheduler's isolation of a forward. What is replaced is listed in `replaced_kernels`: the CUDA samplers, which are
recorded instead of run, because what a test compares is the distribution they were handed.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from sglang.kernels.ops.speculative.dflash import compute_dflash_correct_drafts_and_bonus
from sglang.kernels.ops.speculative.dspark import dspark_accept
from sglang.srt.layers.sampler import apply_custom_logit_processor, top_k_top_p_min_p_sampling_from_probs_torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative import dflash_utils, eagle_utils
from sglang.srt.speculative.dflash_utils import (
    apply_dflash_verify_logits_adjustments,
)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

VOCAB = 13
EOS = 3
TOKENIZER = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=EOS)
Model = Callable[[Sequence[int]], torch.Tensor]
# Batches of sampling parameters, by the penalty that they exercise.
PENALTIES = {
    "frequency": [{"temperature": 0, "frequency_penalty": 1.5}, {"temperature": 0, "frequency_penalty": -2.0}],
    "presence": [{"temperature": 0, "presence_penalty": 2.0}, {"presence_penalty": -1.0}],
    "repetition": [{"temperature": 0, "repetition_penalty": 1.8}, {"repetition_penalty": 0.6}],
    "min_new_tokens": [{"temperature": 0, "min_new_tokens": 7}, {"min_new_tokens": 12}],
    "all": [
        {
            "temperature": 0,
            "frequency_penalty": 0.7,
            "presence_penalty": 0.4,
            "repetition_penalty": 1.3,
            "min_new_tokens": 9,
        },
        {"frequency_penalty": 1.1, "repetition_penalty": 0.7, "logit_bias": {"3": 4.0}},
    ],
    "none": [{"temperature": 0}, {}],
}


@dataclass
class Request:
    """One request of a scenario; `tokens` is what has been committed after the prompt."""

    prompt: list[int]
    sampling: dict
    tokens: list[int] = field(default_factory=list)
    custom_logit_processor: str | None = None


def hashed_model(seed: int) -> Model:
    """A model whose logits `[VOCAB]` (float32, both signs) depend on the last three tokens only, so histories recur."""

    def logits(history: Sequence[int]) -> torch.Tensor:
        digest = hashlib.sha256(repr((seed, list(history[-3:]))).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return torch.randn(VOCAB, generator=generator) * 3

    return logits


def to_req(request: Request, name: str = "r") -> Req:
    """Upstream's request object, before anything is committed."""
    sampling = SamplingParams(**{"max_new_tokens": 1000, **request.sampling})
    sampling.normalize(TOKENIZER)
    sampling.verify(VOCAB)
    req = Req(name, "", array("q", request.prompt), sampling, custom_logit_processor=request.custom_logit_processor)
    req.tokenizer = TOKENIZER
    return req


def to_batch(reqs: list[Req], algorithm: SpeculativeAlgorithm, mode: ForwardMode = ForwardMode.EXTEND) -> ScheduleBatch:
    """A batch as the scheduler hands it to a worker, without memory pools."""
    batch = ScheduleBatch(reqs=reqs)
    batch.device = "cpu"
    batch.spec_algorithm = algorithm
    batch.forward_mode = mode
    batch.return_logprob = False
    batch.seq_lens = torch.tensor([len(r.origin_input_ids) + len(r.output_ids) for r in reqs])
    batch.sampling_info = SamplingBatchInfo.from_schedule_batch(batch, VOCAB)
    return batch


@contextlib.contextmanager
def published_config() -> Iterator[None]:
    """Upstream's configuration, as the sampling code reads it, with custom logit processors admitted."""
    one_rank = SimpleNamespace(world_size=1)
    with (
        get_context().override_server_args(
            enable_custom_logit_processor=True,
            speculative_accept_threshold_single=1.0,
            speculative_accept_threshold_acc=1.0,
        ),
        get_parallel().override(tp_group=one_rank, attn_tp_group=one_rank),
        # Compiling one torch.where for the CPU takes minutes.
        torch.compiler.set_stance("force_eager"),
    ):
        yield


@pytest.fixture(autouse=True)
def published() -> Iterator[None]:
    """`published_config` around every test of a module that imports this."""
    with published_config():
        yield


def forward_isolation(batch: ScheduleBatch):
    """The scheduler's own transaction around one forward, synchronous schedule."""
    return Scheduler._forward_isolation(SimpleNamespace(), batch, overlap=False)


def one_hot(tokens: torch.Tensor) -> torch.Tensor:
    """The distribution `[…, VOCAB]` of an argmax."""
    return torch.nn.functional.one_hot(tokens, VOCAB).float()


def plain_distribution(request: Request, model: Model) -> torch.Tensor:
    """What plain decoding would sample the next token from.

    Returns:
        `[VOCAB]` float32; one-hot for a greedy request.
    """
    req = to_req(request)
    batch = to_batch([req], SpeculativeAlgorithm.NONE)
    for token in request.tokens:
        req.output_ids.append(token)
        if batch.sampling_info.penalizer_orchestrator.is_required:
            batch.cumulate_penalty_output_tokens()
    with forward_isolation(batch):
        info = batch.sampling_info
        logits = model(request.prompt + request.tokens)[None].clone()
        info.apply_logits_bias(logits)
        if info.has_custom_logit_processor:
            apply_custom_logit_processor(logits, info)
    if info.is_all_greedy:
        return one_hot(logits[0].argmax())
    probs = torch.softmax(logits / info.temperatures, dim=-1)
    _, weights, token_ids, _ = top_k_top_p_min_p_sampling_from_probs_torch(
        probs,
        info.top_ks,
        info.top_ps,
        info.min_ps,
        info.need_min_p_sampling,
        None,
        torch.zeros(1, dtype=torch.int64),
        return_filtered_probs=True,
    )
    filtered = torch.zeros(1, VOCAB).scatter_(1, token_ids, weights)
    return (filtered / filtered.sum())[0]


def renorm_top_k(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """Keep the k most probable tokens of each row and renormalize; stands in for FlashInfer's kernel."""
    ranks = probs.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    kept = probs.masked_fill(ranks >= top_ks[:, None], 0)
    return kept / kept.sum(-1, keepdim=True)


def renorm_top_p(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Keep the smallest prefix of mass p of each row and renormalize; stands in for FlashInfer's kernel."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered > top_ps[:, None], 0)
    kept = torch.zeros_like(probs).scatter_(-1, index, ordered)
    return kept / kept.sum(-1, keepdim=True)


@contextlib.contextmanager
def replaced_kernels(record: list[torch.Tensor]) -> Iterator[None]:
    """Replace the CUDA-only samplers; a verify appends what it was to sample from, `[bs, width, VOCAB]`."""

    def sampler(*, target_probs, accept_index, accept_token_num, predicts, **_):
        record.append(target_probs.clone())
        accept_index.zero_()
        accept_token_num.zero_()
        predicts.zero_()

    def greedy(*, target_predict, predicts, accept_index, accept_token_num, **_):
        record.append(one_hot(target_predict))
        return predicts, accept_index, accept_token_num.zero_()

    def softmax(logits, temperatures):
        return torch.softmax(logits / temperatures, dim=-1)

    with contextlib.ExitStack() as stack:

        def replace(module, name, value):
            stack.enter_context(mock.patch.object(module, name, value))

        for module in (eagle_utils, dflash_utils, dspark_accept):
            for name, value in (
                ("tree_speculative_sampling_target_only", sampler),
                ("chain_speculative_sampling_triton", sampler),
                ("verify_tree_greedy_func", greedy),
                ("top_k_renorm_prob", renorm_top_k),
                ("top_p_renorm_prob", renorm_top_p),
                ("sampling_softmax", softmax),
            ):
                if hasattr(module, name):
                    replace(module, name, value)
        replace(dflash_utils, "_DFLASH_SAMPLING_VERIFY_AVAILABLE", True)
        yield


@dataclass
class Tree:
    """A draft tree as the verify kernels see it; node 0 is the last committed token.

    `parents[i] < i` is node i's parent. A chain has `parents = [-1, 0, 1, …]`.
    """

    tokens: list[int]
    parents: list[int]

    def path(self, node: int) -> list[int]:
        """Draft tokens from the root's child down to `node`; empty for the root."""
        return [] if node == 0 else [*self.path(self.parents[node]), self.tokens[node]]

    def links(self) -> tuple[list[int], list[int]]:
        """First-child and next-sibling pointers, -1 where there is none."""
        child, sibling = [-1] * len(self.tokens), [-1] * len(self.tokens)
        last: dict[int, int] = {}
        for node in range(1, len(self.tokens)):
            parent = self.parents[node]
            if parent in last:
                sibling[last[parent]] = node
            else:
                child[parent] = node
            last[parent] = node
        return child, sibling


def chain(tokens: list[int]) -> Tree:
    """A chain of draft tokens; `tokens[0]` is the last committed one."""
    return Tree(tokens, list(range(-1, len(tokens) - 1)))


def random_tree(rng: random.Random, tokens: list[int]) -> Tree:
    """A tree over `tokens` whose children follow their parents in the order the kernels build them."""
    parents = [-1, *sorted(rng.randrange(node) for node in range(1, len(tokens)))]
    return Tree(tokens, parents)


class Path:
    """One verify path, fed the way its scheduler feeds it."""

    algorithm: SpeculativeAlgorithm

    def __init__(self, requests: list[Request], model: Model, reqs: list[Req] | None = None):
        """Admit requests; `reqs` are upstream's objects of requests that were retracted, tokens and all."""
        self.model = model
        self.requests = requests
        self.reqs = [to_req(r, f"r{i}") for i, r in enumerate(requests)] if reqs is None else reqs
        self.batch = to_batch(self.reqs, self.algorithm)

    def prefill(self, forced: list[int] | None = None) -> torch.Tensor:
        """Run the forward that admits the requests and commit one token each, the argmax or the `forced` one.

        Returns:
            Logits `[bs, VOCAB]` after every adjustment but a custom processor's.
        """
        with forward_isolation(self.batch):
            logits = torch.stack([self.model(r.prompt + r.tokens) for r in self.requests]).clone()
            self.batch.sampling_info.apply_logits_bias(logits)
        for i, (request, req) in enumerate(zip(self.requests, self.reqs, strict=True)):
            token = int(logits[i].argmax()) if forced is None else forced[i]
            request.tokens.append(token)
            req.output_ids.append(token)
        self.batch.forward_mode = ForwardMode.DECODE
        return logits

    def drop(self, leaving: list[int]) -> None:
        """Take requests out of the batch: finished or retracted."""
        keep = [i for i in range(len(self.reqs)) if i not in leaving]
        self.requests = [self.requests[i] for i in keep]
        self.reqs = [self.reqs[i] for i in keep]
        self.batch.reqs = list(self.reqs)
        self.batch.sampling_info.filter_batch(keep, torch.tensor(keep, dtype=torch.int64))

    def merge(self, other: Path) -> None:
        """Take in a batch that has just been prefilled."""
        self.batch.sampling_info.merge_batch(other.batch.sampling_info)
        self.requests = self.requests + other.requests
        self.reqs = self.reqs + other.reqs
        self.batch.reqs = list(self.reqs)

    def commit(self, runs: list[list[int]]) -> None:
        """Take in what a verify accepted: a run of tokens per request, in the batch's order."""
        for request, req, run in zip(self.requests, self.reqs, runs, strict=True):
            request.tokens.extend(run)
            req.output_ids.extend(run)

    def prepare(self) -> None:
        """What the scheduler does to the batch before a decode step."""

    def logits(self, trees: list[Tree]) -> torch.Tensor:
        """Rows `[bs * width, VOCAB]`: node i of request b predicts what follows its path."""
        rows = [
            self.model(request.prompt + request.tokens + tree.path(node))
            for request, tree in zip(self.requests, trees, strict=True)
            for node in range(len(tree.tokens))
        ]
        return torch.stack(rows).clone()

    def verify(self, trees: list[Tree]) -> torch.Tensor:
        """Distributions `[bs, width, VOCAB]` the path hands to its sampler; one-hot when it takes the argmax."""
        self.prepare()
        self.batch.seq_lens = torch.tensor([len(r.prompt) + len(r.tokens) for r in self.requests])
        self.record = record = []
        with replaced_kernels(record), forward_isolation(self.batch):
            self.sample(trees, self.logits(trees), self.batch.sampling_info)
        if len(record) != 1:
            raise RuntimeError(f"{type(self).__name__} sampled {len(record)} times in one verify")
        return record[0].view(len(trees), len(trees[0].tokens), VOCAB)

    def sample(self, trees: list[Tree], logits: torch.Tensor, info: SamplingBatchInfo) -> None:
        """Hand one verify's logits to upstream's code for this path."""
        raise NotImplementedError


class Eagle(Path):
    """`eagle_sample`: EAGLE, EAGLE3, NEXTN and STANDALONE verify with it, NGRAM as well."""

    algorithm = SpeculativeAlgorithm.EAGLE
    tree_topk = 1

    def prepare(self) -> None:
        with (
            mock.patch.object(ScheduleBatch, "maybe_evict_swa", lambda _: None),
            mock.patch.object(eagle_utils, "get_alloc_reserve_per_decode", lambda: 0),
            mock.patch.object(
                eagle_utils, "page_aligned_decode_alloc_lens", lambda reqs, **_: ([0] * len(reqs), [0] * len(reqs), 0)
            ),
            mock.patch.object(eagle_utils, "alloc_for_spec_decode", lambda *_, **__: None),
        ):
            self.batch.token_to_kv_pool_allocator = SimpleNamespace(page_size=1)
            eagle_utils.eagle_prepare_for_decode(self.batch)

    def sample(self, trees, logits, info):
        links = [tree.links() for tree in trees]
        width = len(trees[0].tokens)
        verify_input = SimpleNamespace(
            draft_token=torch.tensor([t for tree in trees for t in tree.tokens]),
            draft_token_num=width,
            max_tree_depth=width,
            tree_topk=self.tree_topk,
            retrieve_index=torch.arange(len(trees) * width).view(len(trees), width),
            retrieve_next_token=torch.tensor([child for child, _ in links]),
            retrieve_next_sibling=torch.tensor([sibling for _, sibling in links]),
            draft_probs=None,
        )
        eagle_utils.eagle_sample(verify_input, self.batch, SimpleNamespace(next_token_logits=logits))


class Ngram(Eagle):
    """NGRAM, and EAGLE with topk > 1: the same sampler over trees."""

    algorithm = SpeculativeAlgorithm.NGRAM
    tree_topk = -1


class DFlash(Path):
    """DFLASH: chains, the adjustments of `dflash_utils`, then argmax or its chain sampler."""

    algorithm = SpeculativeAlgorithm.DFLASH

    def adjust(self, trees: list[Tree], logits: torch.Tensor, info: SamplingBatchInfo) -> torch.Tensor:
        """Apply the path's logit adjustments in place; returns the block `[bs, width]`."""
        block = torch.tensor([tree.tokens for tree in trees])
        arguments = {"next_token_logits": logits, "sampling_info": info, "draft_token_num": block.shape[1]}
        if "draft_tokens" in inspect.signature(apply_dflash_verify_logits_adjustments).parameters:
            arguments["draft_tokens"] = block
        apply_dflash_verify_logits_adjustments(**arguments)
        return block

    def sample(self, trees, logits, info):
        block = self.adjust(trees, logits, info)
        if info.is_all_greedy:
            # DFlashWorkerV2._accept_block takes the argmax itself before it compares.
            self.record.append(one_hot(logits.argmax(-1)))
            return
        top_ks = [min(req.sampling_params.top_k, VOCAB) for req in self.reqs]
        dflash_utils.compute_dflash_sampling_correct_drafts_and_bonus(
            candidates=block,
            next_token_logits=logits,
            sampling_info=info,
            max_top_k=max(top_ks),
            uniform_top_k_value=top_ks[0] if len(set(top_ks)) == 1 else None,
        )


class DSpark(DFlash):
    """DSPARK, static verify: DFLASH's adjustments, then its own rejection sampler against a draft distribution."""

    algorithm = SpeculativeAlgorithm.DSPARK

    def sample(self, trees, logits, info):
        if info.is_all_greedy:
            super().sample(trees, logits, info)
            return
        block = self.adjust(trees, logits, info)
        bs, width = block.shape
        top_ks = [min(req.sampling_params.top_k, VOCAB) for req in self.reqs]
        dspark_accept.accept_sampling(
            candidates=block,
            target_logits=logits,
            draft_probs=torch.full((bs, width - 1, VOCAB), 1 / VOCAB),
            sampling_info=info,
            draft_input=SimpleNamespace(
                max_top_k=max(top_ks), uniform_top_k_value=top_ks[0] if len(set(top_ks)) == 1 else None
            ),
            gamma=width - 1,
            verify_num_draft_tokens=width,
        )


def plain_greedy(request: Request, model: Model, length: int) -> list[int]:
    """Tokens of plain greedy decoding, up to `length` or through the first EOS."""
    ahead = Request(request.prompt, request.sampling, [], request.custom_logit_processor)
    while len(ahead.tokens) < length and EOS not in ahead.tokens:
        ahead.tokens.append(int(plain_distribution(ahead, model).argmax()))
    return ahead.tokens


def accept_greedy(trees: list[Tree], distributions: torch.Tensor) -> list[list[int]]:
    """Upstream's greedy accept of chains: the runs of tokens a verify commits."""
    block = torch.tensor([tree.tokens for tree in trees])
    accept_len, bonus = compute_dflash_correct_drafts_and_bonus(
        candidates=block, target_predict=distributions.argmax(-1)
    )
    return [[*block[b, 1 : 1 + int(accept_len[b])].tolist(), int(bonus[b])] for b in range(len(trees))]


def cut(request: Request, run: list[int], length: int) -> list[int]:
    """The part of an accepted run that a finish condition leaves: through EOS, or up to `length` tokens."""
    if EOS in run:
        run = run[: run.index(EOS) + 1]
    return run[: length - len(request.tokens)]


def is_finished(request: Request, length: int) -> bool:
    """Whether decoding of the request has ended."""
    return len(request.tokens) >= length or EOS in request.tokens


PATHS: dict[str, type[Path]] = {"eagle": Eagle, "ngram": Ngram, "dflash": DFlash, "dspark": DSpark}


def admit(path: str, samplings: Sequence[dict], seed: int = 0) -> tuple[Path, random.Random]:
    """Requests of random prompts, prefilled on a verify path; and the generator that made them, to go on with."""
    rng = random.Random(seed)
    requests = [Request([rng.randrange(VOCAB) for _ in range(4)], sampling) for sampling in samplings]
    run = PATHS[path](requests, hashed_model(seed))
    run.prefill([rng.randrange(VOCAB) for _ in requests])
    return run, rng
