"""Served requests with sampling parameters: what comes out with a draft is what comes out without.

Several minutes per algorithm on two cores (interpreted Triton), so not in the default run:

    build/dev/bin/python -m pytest -m long tests/served/test_speculation_sampling.py

SM120_RUNTIME and SM120_RUNTIME_PATHS name another runtime or tree; with the pristine release in front, the tests of
penalties, logit processors and min_p fail. Tokens above the bytes do not occur in the models' language.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sm120.integration.build import models
from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.checkout import find_checkout
from sm120.integration.prove import recipes
from sm120.integration.prove.prompts import prompt
from sm120.integration.prove.server import Argument, Reply, Server

pytestmark = [pytest.mark.served, pytest.mark.long, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
CHECKOUT = find_checkout(HERE)
NEW_TOKENS = 20
DRAFTS = 3
RUN_TOKEN = ord("r")
EOS = 256
ENVIRONMENT = {
    # Compiling a torch.where for the CPU takes minutes; upstream's penalties are one.
    "TORCHDYNAMO_DISABLE": "1",
    # Every verify asserts its width (positive-k-invariant); the pristine release ignores the switch.
    "SGLANG_SPEC_CHECK_VERIFY_WIDTH": "1",
}

# Seconds; a busy machine is slow, not wrong.
PATIENCE = {"start_timeout": 600, "request_timeout": 900}

# One request each, all in one batch; the models like to repeat themselves, so penalties change every output.
PARAMETERS: list[dict[str, Any]] = [
    {"frequency_penalty": 1.0},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.4},
    {"min_new_tokens": 9, "ignore_eos": False, "logit_bias": {str(EOS): 40}},
    {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "min_new_tokens": 5},
    {"logit_bias": {str(RUN_TOKEN): -100}},
    {},
]
# min_p = 1 keeps the most probable token alone: sampling at any temperature is then greedy decoding.
ONLY_THE_BEST: list[dict[str, Any]] = [
    {"temperature": 1.5, "min_p": 1.0},
    {"temperature": 4.0, "min_p": 1.0, "frequency_penalty": 0.5},
    {"temperature": 0},
]
FORBIDDEN = [RUN_TOKEN, 65, 66]
# Everything about log-probabilities that a request can ask for, of its prompt and of its output.
LOGPROBS: dict[str, Any] = {
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 3,
    "token_ids_logprob": [5, RUN_TOKEN],
}
# Seconds between requests that join a batch which is already decoding.
ARRIVALS = 0.4
# Grammars that end within the new tokens, one of them in the middle of a run that drafts like, and one request without.
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"enum": [1, 23]}}, "required": ["n"]})
GRAMMARS: list[dict[str, Any]] = [
    {"regex": "[a-z]{5}r{6}[0-9]", "ignore_eos": False},
    {"json_schema": SCHEMA, "ignore_eos": False},
    {"regex": "([a-q]r*){3,9}", "frequency_penalty": 0.6, "ignore_eos": False},
    {},
]


def algorithms(runtime: Runtime, cache_folder: Path) -> dict[str, dict[str, Argument]]:
    """Arguments of every algorithm that serves the dense model, and of serving it without one."""
    return {
        "none": {},
        # The target's override would give the draft of two layers four; the draft has overrides of its own: none.
        "STANDALONE": {
            **recipes.standalone(models.make(runtime, models.STANDALONE_DRAFT, cache_folder)),
            "json-model-override-args": '{"num_hidden_layers": 4}',
            "speculative-draft-json-model-override-args": "{}",
        },
        "NGRAM": {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": DRAFTS + 1},
        "DFLASH": recipes.dflash(models.make(runtime, models.DFLASH_DRAFT, cache_folder)),
    }


def served_runtime() -> Runtime:
    """The runtime that the environment names, or the one `make runtime` built."""
    return Runtime.chosen()


@cache
def serve(algorithm: str) -> dict[str, list[Reply]]:
    """Start one server and ask it everything the tests want to know."""
    runtime = served_runtime()
    work = CHECKOUT.build / "served"
    arguments = {
        **recipes.DENSE_TRITON,
        "enable-custom-logit-processor": True,
        **algorithms(runtime, work / "models")[algorithm],
    }
    model = models.make(runtime, models.DENSE, work / "models")
    log = work / f"speculation-{algorithm}.log"
    log.unlink(missing_ok=True)
    hooks = [HERE / "target_only_sampler.py"]
    with Server(runtime, model, arguments, log=log, environment=ENVIRONMENT, hooks=hooks, **PATIENCE) as server:

        def ask(sampling: list[dict[str, Any]], **body: Any) -> list[Reply]:
            prompts = [asked(number) for number in range(len(sampling))]
            common = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
            return server.generate_batch(
                prompts, NEW_TOKENS, sampling_params=[{**common, **own} for own in sampling], **body
            )

        return {
            "parameters": ask(PARAMETERS, **LOGPROBS),
            "processor": ask(
                [{"custom_params": {"token_ids": FORBIDDEN}}] * 2, custom_logit_processor=forbidding_processor(runtime)
            ),
            "only the best": ask(ONLY_THE_BEST),
            "grammars": ask(GRAMMARS, return_logprob=True),
        }


@cache
def serve_overlapped(algorithm: str) -> dict[str, list[Reply]]:
    """The questions about parameters to a server with the overlap schedule, in one batch and one after the other."""
    runtime = served_runtime()
    work = CHECKOUT.build / "served"
    arguments = {**recipes.DENSE_TRITON, "disable-overlap-schedule": False}
    arguments |= algorithms(runtime, work / "models")[algorithm]
    model = models.make(runtime, models.DENSE, work / "models")
    log = work / f"speculation-overlapped-{algorithm}.log"
    log.unlink(missing_ok=True)
    hooks = [HERE / "target_only_sampler.py"]
    with Server(runtime, model, arguments, log=log, environment=ENVIRONMENT, hooks=hooks, **PATIENCE) as server:
        sampling = [{"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True, **own} for own in PARAMETERS]
        prompts = [asked(number) for number in range(len(PARAMETERS))]

        def arrive(number: int) -> Reply:
            time.sleep(ARRIVALS * number)
            return server.generate(prompts[number], NEW_TOKENS, sampling_params=sampling[number], **LOGPROBS)

        together = server.generate_batch(prompts, NEW_TOKENS, sampling_params=sampling, **LOGPROBS)
        with ThreadPoolExecutor(len(prompts)) as clients:
            one_by_one = list(clients.map(arrive, range(len(prompts))))
        return {"together": together, "one by one": one_by_one}


def asked(number: int) -> list[int]:
    """The prompt of the `number`-th request of every question."""
    return prompt(300 + number, 10 + 7 * number)


@cache
def serve_hybrid(algorithm: str) -> list[Reply]:
    """A shorter question about penalties to the hybrid model, whose MTP head drafts for NEXTN."""
    runtime = served_runtime()
    work = CHECKOUT.build / "served"
    model = models.make(runtime, models.HYBRID, work / "models")
    arguments = {**recipes.HYBRID, **(recipes.nextn() if algorithm == "NEXTN" else {})}
    log = work / f"speculation-hybrid-{algorithm}.log"
    log.unlink(missing_ok=True)
    environment = {**ENVIRONMENT, **recipes.HYBRID_ENVIRONMENT}
    with Server(runtime, model, arguments, log=log, environment=environment, **PATIENCE) as server:
        sampling = [{"temperature": 0, "max_new_tokens": 10, "ignore_eos": True, **own} for own in PARAMETERS[:3]]
        return server.generate_batch([prompt(400 + n, 9 + n) for n in range(3)], 10, sampling_params=sampling)


@cache
def forbidding_processor(runtime: Runtime) -> str:
    """Upstream's own processor that forbids tokens, serialized by the runtime."""
    script = CHECKOUT.build / "served" / "processor.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "import sys\n"
        "from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor as P\n"
        "open(sys.argv[1], 'w').write(P.to_str())\n"
    )
    answer = script.with_suffix(".txt")
    runtime.run_script(script, str(answer))
    return answer.read_text()


@pytest.fixture(scope="module", params=["STANDALONE", "NGRAM", "DFLASH"])
def algorithm(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("question", ["parameters", "processor", "only the best", "grammars"])
def test_tokens_are_those_without_speculation(algorithm, question):
    for number, (base, reply) in enumerate(zip(serve("none")[question], serve(algorithm)[question], strict=True)):
        assert reply.tokens == base.tokens, f"request {number} of {question} on {algorithm}"


@pytest.mark.parametrize("question", ["parameters", "grammars"])
def test_logprobs_are_those_without_speculation(algorithm, question):
    for number, (base, reply) in enumerate(zip(serve("none")[question], serve(algorithm)[question], strict=True)):
        assert_same_logprobs(reply, base, f"request {number} of {question} on {algorithm}")


@pytest.mark.parametrize("arrival", ["together", "one by one"])
@pytest.mark.parametrize("served", ["none", "STANDALONE", "DFLASH"])
def test_the_overlap_schedule_changes_neither_tokens_nor_logprobs(served, arrival):
    replies = serve_overlapped(served)[arrival]
    for number, (base, reply) in enumerate(zip(serve("none")["parameters"], replies, strict=True)):
        assert reply.tokens == base.tokens, f"request {number}, {arrival}, on {served}"
        assert_same_logprobs(reply, base, f"request {number}, {arrival}, on {served}")


def assert_same_logprobs(reply: Reply, base: Reply, which: str) -> None:
    """Log-probabilities of the tokens said, of the most probable ones and of named ones, of the prompt and the output."""
    for name, want in base.meta.items():
        if name.endswith("_logprobs") and want is not None:
            got = reply.meta[name]
            assert len(got) == len(want), f"{name}, {which}"
            assert by_token(got) == pytest.approx(by_token(want), abs=1e-3), f"{name}, {which}"


def by_token(entries: list[Any]) -> dict[tuple[int, int], float]:
    """(position, token) -> log-probability; the first position of a prompt has none."""
    rows = [row if row and isinstance(row[0], list) else [row] for row in entries]
    return {
        (position, entry[1]): entry[0]
        for position, row in enumerate(rows)
        for entry in row
        if entry and entry[0] is not None
    }


def test_grammars_are_kept_and_end_the_output(algorithm):
    replies = serve(algorithm)["grammars"]
    word, schema, letters, free = (
        bytes(token for token in reply.tokens if token < EOS).decode("latin-1") for reply in replies
    )
    assert re.fullmatch("[a-z]{5}r{6}[0-9]", word) and replies[0].tokens[-1] == EOS
    assert json.loads(schema)["n"] in (1, 23)
    assert re.fullmatch("[a-r]*", letters) and letters[0] != "r"
    assert not re.fullmatch("[a-z0-9]*", free), "the model says other things when it is free to"


@pytest.mark.parametrize("served", ["none", "STANDALONE", "NGRAM", "DFLASH"])
def test_penalized_tokens_and_logprobs_are_those_of_transformers(served, tmp_path):
    """Both sides of the comparison above, by an independent judge: which one is wrong when they differ."""
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    told = [
        {
            "prompt": asked(number),
            "sampling": sampling,
            "tokens": reply.tokens,
            "logprobs": [entry[0] for entry in reply.meta["output_token_logprobs"]],
        }
        for number, (sampling, reply) in enumerate(zip(PARAMETERS, serve(served)["parameters"], strict=True))
    ]
    runtime = served_runtime()
    model = models.make(runtime, models.DENSE, CHECKOUT.build / "served" / "models")
    request.write_text(json.dumps({"model": str(model), "eos": EOS, "served": told}))
    runtime.run_script(HERE / "penalized_reference.py", str(request), str(answer))
    for number, found in enumerate(json.loads(answer.read_text())):
        assert found["choice"] < 1e-4 and found["logprob"] < 1e-3, f"request {number} on {served}: {found}"


def test_the_questions_have_teeth():
    """Without speculation: every penalty changes its request's output, and drafts are worth making."""
    penalized = serve("none")["parameters"]
    plain = penalized[-1]
    counts = [max(reply.tokens.count(token) for token in reply.tokens) for reply in penalized]
    assert plain.tokens.count(RUN_TOKEN) > max(counts[0], counts[4]), "the model must like to repeat itself"
    assert len(penalized[3].tokens) < NEW_TOKENS and penalized[3].tokens[-1] == EOS


def test_min_new_tokens_ends_when_it_should(algorithm):
    reply = serve(algorithm)["parameters"][3]
    assert reply.tokens[-1] == EOS and EOS not in reply.tokens[:-1]
    assert len(reply.tokens) == len(serve("none")["parameters"][3].tokens)


def test_forbidden_tokens_do_not_come_out(algorithm):
    for reply in serve(algorithm)["processor"]:
        assert not set(FORBIDDEN) & set(reply.tokens)


def test_drafts_are_accepted(algorithm):
    """Otherwise the tests above would compare plain decoding with itself."""
    replies = [reply for batch in serve(algorithm).values() for reply in batch]
    assert sum(reply.meta["spec_num_correct_drafts"] for reply in replies) > len(replies)


def test_counts_of_a_fixed_width(algorithm):
    for reply in [reply for batch in serve(algorithm).values() for reply in batch]:
        meta = reply.meta
        assert meta["spec_num_proposed_drafts"] == DRAFTS * meta["spec_verify_ct"]
        histogram = meta["spec_correct_drafts_histogram"]
        assert sum(histogram) == meta["spec_verify_ct"]
        assert sum(n * steps for n, steps in enumerate(histogram)) == meta["spec_num_correct_drafts"]
        assert meta["spec_num_correct_drafts"] <= meta["spec_num_proposed_drafts"]
        assert meta["spec_accept_rate"] == pytest.approx(
            meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"]
        )


def test_penalties_with_the_targets_own_mtp_head():
    replies = serve_hybrid("NEXTN")
    for number, (base, reply) in enumerate(zip(serve_hybrid("none"), replies, strict=True)):
        assert reply.tokens == base.tokens, f"request {number}"
    assert sum(reply.meta["spec_num_correct_drafts"] for reply in replies) > 0
    for reply in replies:
        assert reply.meta["spec_num_proposed_drafts"] == DRAFTS * reply.meta["spec_verify_ct"]
