"""Drives the released scheduler's sampling code without a model: plain decoding and every speculative verify path.

A request is a prompt, the tokens committed so far, and sampling parameters; a model is any function from a token
history to logits. Both sides run upstream's own code: penalizers, logit adjustments, verify samplers, and the
scheduler's isolation of a forward. What is replaced is listed in `replaced_kernels`: the CUDA samplers, which are
recorded instead of run, because what a test compares is the distribution they were handed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from sglang.kernels.ops.sampling import murmur_hash
from sglang.kernels.ops.speculative.dflash import compute_dflash_correct_drafts_and_bonus
from sglang.kernels.ops.speculative.dspark import dspark_accept
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.layers.sampler import (
    Sampler,
    apply_custom_logit_processor,
    top_k_top_p_min_p_sampling_from_probs_torch,
)
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative import dflash_utils, eagle_utils
from sglang.srt.speculative.dflash_utils import (
    apply_dflash_verify_logits_adjustments,
)
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

VOCAB = 13
EOS = 3
TOKENIZER = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=EOS)
# Token t is the t-th letter for grammars; EOS is no letter.
LETTERS = [chr(ord("a") + token) if token != EOS else "<eos>" for token in range(VOCAB)]
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
    if sampling.regex is not None:
        req.grammar = grammar(sampling.regex)
        for token in request.tokens:
            req.grammar.accept_token(token)
    return req


def grammar(regex: str):
    """Upstream's grammar object over `LETTERS`, before its first token."""
    import xgrammar
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar

    compiled = compiled_grammar(regex)
    return XGrammarGrammar(xgrammar.GrammarMatcher(compiled, max_rollback_tokens=200), VOCAB, compiled, None, regex)


@functools.cache
def compiled_grammar(regex: str):
    import xgrammar

    info = xgrammar.TokenizerInfo(LETTERS, vocab_size=VOCAB, stop_token_ids=[EOS])
    return xgrammar.GrammarCompiler(info).compile_regex(regex)


def allows(request: Request, tokens: Sequence[int]) -> bool:
    """Whether the request's grammar lets `tokens` follow what is committed; yes without a grammar."""
    regex = request.sampling.get("regex")
    if regex is None:
        return True
    state = grammar(regex).matcher
    return all(not state.is_terminated() and state.accept_token(token) for token in [*request.tokens, *tokens])


def to_batch(reqs: list[Req], algorithm: SpeculativeAlgorithm, mode: ForwardMode = ForwardMode.EXTEND) -> ScheduleBatch:
    """A batch as the scheduler hands it to a worker, without memory pools."""
    batch = ScheduleBatch(reqs=reqs)
    batch.device = "cpu"
    batch.spec_algorithm = algorithm
    batch.forward_mode = mode
    batch.has_grammar = any(req.grammar is not None for req in reqs)
    batch.return_logprob = False
    batch.seq_lens = torch.tensor([len(r.origin_input_ids) + len(r.output_ids) for r in reqs])
    batch.sampling_info = SamplingBatchInfo.from_schedule_batch(batch, VOCAB)
    return batch


@contextlib.contextmanager
def published_config(**arguments: object) -> Iterator[None]:
    """Upstream's configuration, as the sampling code reads it, with custom logit processors admitted."""
    one_rank = SimpleNamespace(world_size=1, device_group=None)
    with (
        get_context().override_server_args(
            enable_custom_logit_processor=True,
            sampling_backend="pytorch",
            speculative_accept_threshold_single=1.0,
            speculative_accept_threshold_acc=1.0,
            **arguments,
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


def forward_isolation(batch: ScheduleBatch, results: Sequence[tuple[ScheduleBatch, object]] | None = None):
    """The scheduler's own transaction around one forward; with `results`, which the host has not processed yet, under
    the overlap schedule."""
    scheduler = SimpleNamespace(result_queue=deque(results or ()), record_batch_in_overlap=lambda _: None)
    return Scheduler._forward_isolation(scheduler, batch, overlap=results is not None)


def pending_result(batch: ScheduleBatch, tokens: torch.Tensor, accept_lens: torch.Tensor | None):
    """What the scheduler keeps of a forward whose sampled `tokens` are still on the device.

    Upstream's relay of the result, then its copy to the host, which a host that looks too early finds poisoned.
    """
    result = GenerationBatchResult(next_token_ids=tokens, accept_lens=accept_lens)
    relay = SimpleNamespace(
        spec_algorithm=SpeculativeAlgorithm.NONE,
        future_map=SimpleNamespace(stash=lambda *_: None),
        beam_coordinator=SimpleNamespace(maybe_select_and_relay=lambda *_, **__: None),
        chunked_req=None,
    )
    Scheduler._relay_forward_payload(relay, batch, torch.arange(len(batch.reqs)), result)
    result.next_token_ids = torch.full_like(tokens, VOCAB - 1)
    result.accept_lens = None if accept_lens is None else torch.full_like(accept_lens, 1)
    return batch.copy(), result


def one_hot(tokens: torch.Tensor) -> torch.Tensor:
    """The distribution `[…, VOCAB]` of an argmax."""
    return torch.nn.functional.one_hot(tokens, VOCAB).float()


def plain_logits(request: Request, model: Model) -> tuple[torch.Tensor, SamplingBatchInfo]:
    """Logits `[1, VOCAB]` of plain decoding as its sampler gets them, and the sampling parameters that go with them."""
    req = to_req(request)
    batch = to_batch([req], SpeculativeAlgorithm.NONE)
    for token in request.tokens:
        req.output_ids.append(token)
        if batch.sampling_info.penalizer_orchestrator.is_required:
            batch.cumulate_penalty_output_tokens()
    req.num_penalized_output_tokens = len(req.output_ids)
    with forward_isolation(batch):
        info = batch.sampling_info
        info.grammars = [req.grammar] if batch.has_grammar else None
        info.update_regex_vocab_mask()
        logits = model(request.prompt + request.tokens)[None].clone()
        info.apply_logits_bias(logits)
    info.request = req  # a custom logit processor sees it through a weak reference
    return logits, info


def plain_distribution(request: Request, model: Model) -> torch.Tensor:
    """What plain decoding would sample the next token from.

    Returns:
        `[VOCAB]` float32; one-hot for a greedy request.
    """
    logits, info = plain_logits(request, model)
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


def plain_logprobs(request: Request, model: Model) -> torch.Tensor:
    """Log-probabilities `[VOCAB]` that plain decoding reports for the next token, by upstream's sampler."""
    logits, info = plain_logits(request, model)
    info.grammars = None  # would make the sampler agree with the other ranks
    output = SimpleNamespace(next_token_logits=logits)
    every_token = [list(range(VOCAB))]
    Sampler()(output, info, True, [0], every_token, positions=torch.zeros(1, dtype=torch.int64))
    return torch.as_tensor(output.next_token_token_ids_logprobs_val[0])


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


def hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """Some 32 bits for each seed and position, and each column; stands in for a kernel that a CPU does not have."""

    def bits(*key: int) -> int:
        return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big")

    rows = zip(seed.tolist(), positions.tolist(), strict=True)
    return torch.tensor([[bits(*row, column) for column in col_indices.tolist()] for row in rows])


@contextlib.contextmanager
def replaced_kernels(record: list[torch.Tensor], coins: list[torch.Tensor] | None = None) -> Iterator[None]:
    """Replace the CUDA-only samplers; a verify appends what it was to sample from, `[bs, width, VOCAB]`.

    `coins` takes the uniform numbers that it was to sample with, `[bs, …]`.
    """

    def sampler(
        *,
        target_probs,
        accept_index,
        accept_token_num,
        predicts,
        uniform_samples,
        uniform_samples_for_final_sampling,
        **_,
    ):
        record.append(target_probs.clone())
        if coins is not None:
            coins.append(torch.cat([uniform_samples, uniform_samples_for_final_sampling[:, None]], dim=1))
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
        replace(murmur_hash, "murmur_hash32", hash32)
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

    def nodes(self, node: int) -> list[int]:
        """The nodes from the root, which is included, down to `node`."""
        return [0] if node == 0 else [*self.nodes(self.parents[node]), node]

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
        # What the forwards launched last sampled and the host has not processed: None with the synchronous schedule.
        self.results: list[tuple[ScheduleBatch, object]] | None = None

    def prefill(self, forced: list[int] | None = None) -> torch.Tensor:
        """Run the forward that admits the requests and commit one token each, the argmax or the `forced` one.

        Returns:
            Logits `[bs, VOCAB]` after every adjustment but a custom processor's.
        """
        with forward_isolation(self.batch, self.results):
            info = self.batch.sampling_info
            info.grammars = [req.grammar for req in self.reqs] if self.batch.has_grammar else None
            info.update_regex_vocab_mask()
            logits = torch.stack([self.model(r.prompt + r.tokens) for r in self.requests]).clone()
            info.apply_logits_bias(logits)
        self.commit([[int(logits[i].argmax()) if forced is None else forced[i]] for i in range(len(self.reqs))])
        self.batch.forward_mode = ForwardMode.DECODE
        return logits

    def drop(self, leaving: list[int]) -> None:
        """Take requests out of the batch: finished or retracted."""
        keep = [i for i in range(len(self.reqs)) if i not in leaving]
        self.requests = [self.requests[i] for i in keep]
        self.reqs = [self.reqs[i] for i in keep]
        self.batch.reqs = list(self.reqs)
        self.batch.has_grammar = any(req.grammar is not None for req in self.reqs)
        self.batch.sampling_info.filter_batch(keep, torch.tensor(keep, dtype=torch.int64))

    def merge(self, other: Path) -> None:
        """Take in a batch that has just been prefilled."""
        self.batch.sampling_info.merge_batch(other.batch.sampling_info)
        self.requests = self.requests + other.requests
        self.reqs = self.reqs + other.reqs
        self.batch.reqs = list(self.reqs)
        self.batch.has_grammar |= other.batch.has_grammar

    def mix(self, running: Path) -> None:
        """Let the decode rows of `running` ride in this batch's prefill, as mixed chunked prefill does."""
        running.prepare()
        self.merge(running)
        self.batch.forward_mode = ForwardMode.MIXED

    def commit(self, runs: list[list[int]]) -> None:
        """Take in what a verify accepted: a run of tokens per request, in the batch's order.

        Upstream drops what comes after the end of a grammar; a token that a grammar forbids is an AssertionError.
        """
        for request, req, run in zip(self.requests, self.reqs, runs, strict=True):
            if req.grammar is not None:
                run = SchedulerBatchResultProcessor._accept_grammar_tokens(None, req, run)
                assert req.to_finish is None, req.to_finish.message
            request.tokens.extend(run)
            req.output_ids.extend(run)

    def launch(self, runs: list[list[int]]) -> None:
        """Let the device accept these runs of tokens, while the host processes what it was launched before.

        The rows of the result are as long as the longest run; behind a shorter one lies what comes next, which would
        show if it were counted already.
        """
        self.process()
        width = max(map(len, runs))
        rows = []
        for request, run in zip(self.requests, runs, strict=True):
            ahead = Request(request.prompt, request.sampling, request.tokens + run)
            follows = int(plain_distribution(ahead, self.model).argmax())
            rows.append(run + [follows] * (width - len(run)))
        tokens = torch.tensor(rows, dtype=torch.int32).flatten()
        lens = torch.tensor([len(run) for run in runs], dtype=torch.int32)
        self.results = [pending_result(self.batch, tokens, lens)]
        self.accepted = dict(zip(map(id, self.reqs), runs, strict=True))
        for request, run in zip(self.requests, runs, strict=True):
            request.tokens.extend(run)

    def process(self) -> None:
        """Let the host process the pending result."""
        for req in self.reqs if self.results else ():
            req.output_ids.extend(self.accepted.pop(id(req), []))
        self.results = []

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

    def verify(self, trees: list[Tree], taken: list[int] | None = None) -> torch.Tensor:
        """Distributions `[bs, width, VOCAB]` the path hands to its sampler; one-hot when it takes the argmax.

        `coins` holds the uniform numbers of a sampling verify afterwards, and with `taken`, the last accepted node of
        each tree, `logprobs` the `[VOCAB]` rows that would be reported along its path, first row first, per request.
        """
        self.prepare()
        self.batch.seq_lens = torch.tensor([len(r.prompt) + len(r.tokens) for r in self.requests])
        self.record, self.coins = record, coins = [], []
        with replaced_kernels(record, coins), forward_isolation(self.batch, self.results):
            logits = self.logits(trees)
            self.sample(trees, logits, self.batch.sampling_info)
            if taken is not None:
                self.logprobs = self.reported_logprobs(trees, logits, taken)
        if len(record) != 1:
            raise RuntimeError(f"{type(self).__name__} sampled {len(record)} times in one verify")
        return record[0].view(len(trees), len(trees[0].tokens), VOCAB)

    def grammar_mask(self, trees: list[Tree], info: SamplingBatchInfo):
        """Upstream's mask of this verify's rows, None where no request has a grammar."""
        if not self.batch.has_grammar:
            return None
        return build_grammar_vocab_mask(
            reqs=self.reqs, tree=self.grammar_tree(trees), sampling_info=info, device="cpu", barrier=None
        )

    def grammar_tree(self, trees: list[Tree]) -> GrammarTree:
        """What upstream builds the mask over."""
        links = [tree.links() for tree in trees]
        return GrammarTree.from_device(
            torch.tensor([child for child, _ in links]),
            torch.tensor([sibling for _, sibling in links]),
            torch.tensor([tree.tokens for tree in trees]),
        )

    def reported_logprobs(self, trees: list[Tree], logits: torch.Tensor, taken: list[int]) -> list[torch.Tensor]:
        """Upstream's log-probabilities `[1 + depth, VOCAB]` of each request, had it accepted up to its `taken` node."""
        bs, width = len(trees), len(trees[0].tokens)
        accept_index = torch.full((bs, width), -1)
        predict = torch.zeros(bs * width, dtype=torch.int32)
        for b, (tree, last) in enumerate(zip(trees, taken, strict=True)):
            nodes = tree.nodes(last)
            accept_index[b, : len(nodes)] = torch.tensor(nodes) + b * width
            predict[accept_index[b, : len(nodes) - 1]] = torch.tensor(tree.path(last), dtype=torch.int32)
        output = SimpleNamespace(next_token_logits=logits)
        self.batch.top_logprobs_nums = [0] * bs
        self.batch.token_ids_logprobs = [list(range(VOCAB))] * bs
        compute_spec_logprobs(self.batch, output, predict, **self.logprob_layout(accept_index))
        rows = output.next_token_token_ids_logprobs_val
        width = len(rows) // bs
        found = [
            torch.stack(rows[b * width :][: len(tree.nodes(last))])
            for b, (tree, last) in enumerate(zip(trees, taken, strict=True))
        ]
        for b, logprobs in enumerate(found):
            said = predict[accept_index[b, : len(logprobs)]].long()
            torch.testing.assert_close(
                output.next_token_logprobs[b, : len(logprobs)], logprobs.gather(1, said[:, None])[:, 0]
            )
        return found

    def logprob_layout(self, accept_index: torch.Tensor) -> dict:
        """How this path tells upstream which rows were accepted."""
        return {"accept_index": accept_index}

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
        output = SimpleNamespace(next_token_logits=logits)
        eagle_utils.eagle_sample(verify_input, self.batch, output, self.grammar_mask(trees, info))


class Ngram(Eagle):
    """NGRAM, and EAGLE with topk > 1: the same sampler over trees."""

    algorithm = SpeculativeAlgorithm.NGRAM
    tree_topk = -1


class DFlash(Path):
    """DFLASH: chains, the adjustments of `dflash_utils`, then argmax or its chain sampler."""

    algorithm = SpeculativeAlgorithm.DFLASH

    def grammar_tree(self, trees):
        return GrammarTree.from_linear_chain(torch.tensor([tree.tokens for tree in trees]))

    def logprob_layout(self, accept_index):
        return {"chain_stride": accept_index.shape[1]}

    def adjust(self, trees: list[Tree], logits: torch.Tensor, info: SamplingBatchInfo) -> torch.Tensor:
        """Apply the path's logit adjustments in place; returns the block `[bs, width]`."""
        block = torch.tensor([tree.tokens for tree in trees])
        mask = self.grammar_mask(trees, info)
        arguments = {"next_token_logits": logits, "sampling_info": info, "draft_token_num": block.shape[1]}
        if "draft_tokens" in inspect.signature(apply_dflash_verify_logits_adjustments).parameters:
            arguments["draft_tokens"] = block
        apply_dflash_verify_logits_adjustments(**arguments)
        if mask is not None:
            mask.apply(logits)
        return block

    def sample(self, trees, logits, info):
        block = self.adjust(trees, logits, info)
        if info.is_all_greedy:
            # DFlashWorkerV2._accept_block takes the argmax itself before it compares.
            self.record.append(one_hot(logits.argmax(-1)))
            return
        top_ks = [min(req.sampling_params.top_k, VOCAB) for req in self.reqs]
        worker = SimpleNamespace(
            _selector_sample=None, block_size=block.shape[1], _tp_sync=SimpleNamespace(sync=lambda *_: None)
        )
        DFlashWorkerV2._accept_block(
            worker,
            candidates=block,
            next_token_logits=logits,
            sampling_info=info,
            draft_input=SimpleNamespace(
                max_top_k=max(top_ks), uniform_top_k_value=top_ks[0] if len(set(top_ks)) == 1 else None
            ),
            prefix_lens=self.batch.seq_lens,
            bs=len(trees),
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


def check_rows(run: Path, trees: Sequence[Tree], got: torch.Tensor) -> None:
    """Every row of a verify block has the distribution of plain decoding after that row's path."""
    for b, (request, tree) in enumerate(zip(run.requests, trees, strict=True)):
        for row in range(len(tree.tokens)):
            ahead = Request(request.prompt, request.sampling, request.tokens + tree.path(row))
            torch.testing.assert_close(got[b, row], plain_distribution(ahead, run.model))


def check_mixed_prefill(path: str, samplings: Sequence[dict]) -> None:
    """Decode rows in the prefill of others count the pending block before them, and so does the verify after it."""
    run, _ = admit(path, samplings)
    arriving = PATHS[path]([Request([2, 6], {})], run.model)
    run.verify([chain([r.tokens[-1], 1, 4, 1]) for r in run.requests])
    run.launch([[1, 4, 1, 4], [1, 4]])
    ahead = [Request(r.prompt, r.sampling, list(r.tokens)) for r in run.requests]
    arriving.mix(run)
    assert not must_wait(arriving.batch, run.batch)
    arriving.results = run.results
    got = arriving.prefill()
    for b, request in enumerate([Request([2, 6], {}), *ahead]):
        torch.testing.assert_close(got[b], plain_logits(request, run.model)[0][0])
    # The host processes the block after it has processed the prefill's tokens here; the order does not matter.
    run.process()
    arriving.results = None
    trees = [chain([r.tokens[-1], 4, 1, 4]) for r in arriving.requests]
    check_rows(arriving, trees, arriving.verify(trees))


def check_overlap(path: str, samplings: Sequence[dict], rounds: int = 4) -> None:
    """Blocks verified while the result before them is still on the device have plain decoding's distributions."""
    run, rng = admit(path, samplings)
    for number in range(rounds):
        drafts = [[r.tokens[-1], *(rng.choice([1, EOS, 4]) for _ in range(4))] for r in run.requests]
        trees = [random_tree(rng, tokens) if path == "ngram" else chain(tokens) for tokens in drafts]
        assert not must_wait(run.batch, run.batch)
        got = run.verify(trees)
        check_rows(run, trees, got)
        run.launch([[*tree.path(rng.randrange(5)), rng.randrange(VOCAB)] for tree in trees])
        if number == 1:
            # One request leaves while its result is on its way, another comes with its first token on the device.
            run.drop([0])
            other = PATHS[path]([Request([5, 1], samplings[0])], run.model)
            other.prefill([4])
            other.reqs[0].output_ids.pop()
            other.accepted = {id(other.reqs[0]): [4]}
            run.results.append(pending_result(other.batch, torch.tensor([4]), None))
            run.merge(other)
            run.accepted |= other.accepted


def must_wait(batch: ScheduleBatch, last_batch: ScheduleBatch) -> bool:
    """Whether upstream takes in the pending result before it launches `batch`."""
    scheduler = SimpleNamespace(require_mlp_sync=False, result_queue=deque([None]))
    return bool(Scheduler.is_disable_overlap_for_batch(scheduler, batch, last_batch=last_batch))


def admit(path: str, samplings: Sequence[dict], seed: int = 0) -> tuple[Path, random.Random]:
    """Requests of random prompts, prefilled on a verify path; and the generator that made them, to go on with."""
    rng = random.Random(seed)
    requests = [Request([rng.randrange(VOCAB) for _ in range(4)], sampling) for sampling in samplings]
    run = PATHS[path](requests, hashed_model(seed))
    run.prefill([rng.randrange(VOCAB) for _ in requests])
    return run, rng
