"""Probe of plain-penalty-counts: plain decoding is penalized for its output, all of it and nothing else."""

import contextlib
import itertools
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

sys.path.insert(0, str(Path(__file__).parent))
import verify_paths as vp
from verify_paths import published  # noqa: F401  pytest finds the fixture by this name


def penalized(request, model):
    """Logits after `request.tokens`, by the definition of each penalty."""
    sampling = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0}
    sampling |= request.sampling
    logits = model(request.prompt + request.tokens).clone()
    for token, count in Counter(request.tokens).items():
        logits[token] -= sampling["frequency_penalty"] * count + sampling["presence_penalty"]
    if len(request.tokens) < sampling["min_new_tokens"]:
        logits[vp.EOS] = -torch.inf
    for token in set(request.tokens):
        scale = sampling["repetition_penalty"]
        logits[token] = logits[token] / scale if logits[token] > 0 else logits[token] * scale
    for token, bias in sampling.get("logit_bias", {}).items():
        logits[int(token)] += bias
    return logits


class Plain(vp.Path):
    """Decoding without drafts."""

    algorithm = SpeculativeAlgorithm.NONE

    def decode(self):
        """Logits `[bs, VOCAB]` of one decode step under the schedule that `results` says."""
        prepare_for_decode(self.batch)
        return self.forward()

    def forward(self):
        with vp.forward_isolation(self.batch, self.results):
            logits = torch.stack([self.model(r.prompt + r.tokens) for r in self.requests]).clone()
            self.batch.sampling_info.apply_logits_bias(logits)
        return logits

    def decode_synchronously(self):
        """The same by the scheduler's own `run_batch`, without the overlap schedule."""
        prepare_for_decode(self.batch)
        return self.run_batch()

    def run_batch(self):
        def forward(batch, **_):
            logits = torch.stack([self.model(r.prompt + r.tokens) for r in self.requests]).clone()
            batch.sampling_info.update_regex_vocab_mask()
            batch.sampling_info.apply_logits_bias(logits)
            return SimpleNamespace(logits=logits, has_sampled_token_ids=False)

        scheduler = mock.MagicMock(
            forward_ct=0,
            scripted_scheduler_hook=None,
            forward_sleep_time=None,
            disaggregation_mode=None,
            is_generation=True,
            enable_overlap=False,
            enable_pdmux=False,
            enable_unified_cache_external_linker=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            processed_tokens_counter=0,
            scheduler_stage_metrics=None,
        )
        scheduler.model_worker.forward_batch_generation = forward
        with mock.patch.object(scheduler_module, "resolve_forward_inputs"):
            return Scheduler.run_batch(scheduler, self.batch).logits


class Prepared(Exception):
    """What `prepare_for_decode` does after the penalties needs memory pools."""


class NoModel:
    @property
    def is_encoder_decoder(self):
        raise Prepared


def prepare_for_decode(batch):
    """What upstream does to the penalties when it prepares a decode step."""
    batch.model_config = NoModel()
    with contextlib.suppress(Prepared):
        batch.prepare_for_decode()


def admit(kind, seed=0):
    rng = random.Random(seed)
    requests = [vp.Request([rng.randrange(vp.VOCAB) for _ in range(4)], s) for s in vp.PENALTIES[kind]]
    return Plain(requests, vp.hashed_model(seed)), rng


def check(run, logits):
    for row, request in zip(logits, run.requests, strict=True):
        torch.testing.assert_close(row, penalized(request, run.model))


@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_the_overlap_schedule_counts_what_is_still_on_the_device(kind):
    run, rng = admit(kind)
    run.results = []
    run.prefill([rng.choice([1, 4]) for _ in run.requests])
    # The host has not processed the prefill when the first decode step is launched.
    run.results = [vp.pending_result(run.batch, torch.tensor([req.output_ids.pop() for req in run.reqs]), None)]
    run.accepted = {id(req): request.tokens[-1:] for req, request in zip(run.reqs, run.requests, strict=True)}
    for _ in range(4):
        check(run, run.decode())
        run.process()
        tokens = [rng.choice([1, 4, vp.EOS]) for _ in run.requests]
        run.results = [vp.pending_result(run.batch, torch.tensor(tokens), None)]
        run.accepted = {id(req): [token] for req, token in zip(run.reqs, tokens, strict=True)}
        for request, token in zip(run.requests, tokens, strict=True):
            request.tokens.append(token)


@pytest.mark.parametrize("kind", vp.PENALTIES)
def test_the_synchronous_schedule(kind):
    run, rng = admit(kind)
    check(run, run.run_batch())
    run.commit([[rng.choice([1, 4])] for _ in run.requests])
    run.batch.forward_mode = ForwardMode.DECODE
    for _ in range(4):
        check(run, run.decode_synchronously())
        run.commit([[rng.choice([1, 4, vp.EOS])] for _ in run.requests])


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_retracted_request_comes_back_with_its_counts(synchronous):
    run, _ = admit("all")
    run.results = None if synchronous else []
    run.commit([[1, 4, 1], [4, 4]])
    back = Plain(run.requests, run.model, run.reqs)
    back.results = run.results
    check(back, back.run_batch() if synchronous else back.forward())


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
def test_penalties_do_not_depend_on_the_order_of_a_set(order):
    run, _ = admit("all")
    penalizers = run.batch.sampling_info.penalizer_orchestrator
    items = list(penalizers.penalizers.items())
    penalizers.penalizers = dict(items[i] for i in order)
    run.commit([[1, 4, 1], [4, 4, 2]])
    for tokens in zip(*(request.tokens for request in run.requests), strict=True):
        penalizers.cumulate_output_tokens(torch.tensor(tokens))
    logits = torch.stack([run.model(r.prompt + r.tokens) for r in run.requests]).clone()
    run.batch.sampling_info.apply_logits_bias(logits)
    check(run, logits)
