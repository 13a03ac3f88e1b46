"""A served gated-delta-net hybrid: without per-draft states it says what it says with them, and without speculation.

The short pair runs by default. The rest is marked long:  pytest tests/served/test_recover_ssm.py -m long
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from sm120.integration.build import models
from sm120.integration.prove import recipes
from sm120.integration.prove.server import Reply, Server, ServerFailed
from sm120.integration.serve.planner import HybridModel, ServerSettings, plan
from sm120.integration.serve.planner.settings import SideState

pytestmark = [pytest.mark.served, pytest.mark.timeout(1200)]

FAULTS = Path(__file__).parent / "recover_faults"
# Head dims that the kernels know, and few heads: the interpreter pays per program.
LINEAR = dict(linear_key_head_dim=64, linear_value_head_dim=64, linear_num_key_heads=1, linear_num_value_heads=2)
TARGET = replace(models.HYBRID, config=LINEAR)
PROMPTS = [[97 + i * 7 % 100 for i in range(n)] for n in (11, 36, 14)]
# Prompts for which the STANDALONE draft guesses well; by transformers alone, with its margins: all lengths occur in the
# first, and every three-draft run of the others.
AGREEABLE = [[97 + i * step % 100 for i in range(12)] for step in (26, 17, 30)]
NEW_TOKENS = 12
DRAFTS = 4


@dataclass(frozen=True)
class Answers:
    """What one server said to the prompts in one batch, and what its log told about its pools."""

    replies: tuple[Reply, ...]
    pools: dict[str, int]
    max_running: int

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        return [reply.tokens for reply in self.replies]


@pytest.fixture(scope="session")
def answers(runtime, work, request):
    """answers(algorithm, mode, fault, kind): start that server once, ask it, stop it.

    The kind is what it serves and is asked: the three prompts, "accepted" for prompts with better drafts, "paged" for a
    request that is continued, "ple" for the three prompts to a model with PLE, "wide-conv" for the three prompts with
    conv states in float32.
    """

    @cache
    def ask(algorithm: str | None, mode: str = "full", fault: str | None = None, kind: str = "prompts") -> Answers:
        make = lambda model: models.make(runtime, model, work / "models")  # noqa: E731
        arguments = dict(recipes.HYBRID_PAGED if kind == "paged" else recipes.HYBRID)
        if algorithm == "nextn":
            arguments |= recipes.nextn()
        elif algorithm == "standalone":
            arguments |= recipes.standalone(make(models.HYBRID_STANDALONE_DRAFT))
        elif algorithm == "dflash":
            arguments |= recipes.dflash(make(models.HYBRID_DFLASH_DRAFT))
        if algorithm:
            arguments["gdn-mtp-cache-mode"] = mode
        hooks = [FAULTS / "report_pool_bytes.py", *([FAULTS / f"{fault}.py"] if fault else [])]
        environment = dict(recipes.HYBRID_ENVIRONMENT)
        if kind == "ple":
            ple = request.getfixturevalue("ple_model")
            hooks += ple.hooks
            environment |= ple.environment
        elif kind == "wide-conv":
            environment["SGLANG_MAMBA_CONV_DTYPE"] = "float32"
        log = work / f"{algorithm}-{mode}-{fault}-{kind}.log"
        target = ple.folder if kind == "ple" else make(TARGET)
        server = Server(runtime, target, arguments, log=log, environment=environment, hooks=hooks)
        with server:
            if kind == "paged":
                replies = resume_after_a_checkpoint(server)
            else:
                replies = server.generate_batch(AGREEABLE if kind == "accepted" else PROMPTS, NEW_TOKENS)
            said = log.read_text()
        found = re.findall(r"POOL_BYTES (.*)", said)
        # what the scheduler runs with, after the state pool has capped what the arguments asked for
        running = re.findall(r"max_prefill_tokens=\d+, max_running_requests=(\d+), context_len=", said)
        assert len(running) == 1, f"{log}: the scheduler reports its totals {len(running)} times, needs once"
        pools = [dict(pair.split("=") for pair in line.split()) for line in found]
        # the draft of NEXTN shares the target's pool: one line is the target's
        return Answers(tuple(replies), {name: int(value) for name, value in pools[0].items()}, int(running[0]))

    return ask


def resume_after_a_checkpoint(server: Server) -> list[Reply]:
    """Cross token 64 while generating, then go on from that checkpoint: its state can only come from the commit.

    The prompt is one whose round over the boundary accepts two drafts past it, and the continuations leave the path at
    the boundary: tokens later the state has forgotten, and the same tokens once more hardly change it.
    """
    prompt = [97 + i * 29 % 100 for i in range(60)]
    first = server.generate(prompt, 14)
    boundary = [*prompt, *first.tokens[:4]]
    return [first, *server.generate_batch([[*boundary, other] for other in (99, 45, 120)], 8)]


def planned(mode: str, answers: Answers, side_state: SideState | None = None) -> dict[str, int]:
    model = HybridModel(
        linear_layers=3,
        full_layers=1,
        mtp_layers=1,
        num_k_heads=1,
        num_v_heads=2,
        head_k_dim=64,
        head_v_dim=64,
        conv_kernel=4,
        kv_heads=2,
        head_dim=32,
        side_state=side_state,
    )
    settings = ServerSettings(
        max_running=answers.max_running,
        mamba_slots=recipes.HYBRID["max-mamba-cache-size"],
        kv_tokens=512,
        draft_tokens=DRAFTS,
        cache_mode=mode,
        state_dtype="float32",
        conv_dtype="float16",
        model_dtype="float16",
    )
    return {pool.name: pool.bytes for pool in plan(model, settings) if pool.name not in ("kv", "draft_kv")}


def test_nextn_without_states_says_what_no_speculation_says(answers):
    plain, none = answers(None), answers("nextn", "none")
    assert none.tokens == plain.tokens
    lengths = [reply.accept_length for reply in none.replies]
    assert max(lengths) > 1.2, f"the drafts are never accepted ({lengths}): the commit is not exercised"


def test_the_pools_of_the_server_are_the_planner_s(answers):
    none = answers("nextn", "none")
    assert none.pools == planned("none", none)
    assert "intermediate_ssm" not in none.pools


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["nextn", "standalone", "dflash"])
def test_without_states_equals_with_states_equals_no_speculation(answers, algorithm):
    plain, full, none = answers(None), answers(algorithm), answers(algorithm, "none")
    assert none.tokens == full.tokens == plain.tokens
    counts = lambda said: [reply.meta["spec_verify_ct"] for reply in said.replies]  # noqa: E731
    assert counts(none) == counts(full)
    assert full.pools == planned("full", full)
    assert none.pools == planned("none", none)


@pytest.mark.long
def test_every_accepted_length_occurs_and_is_committed_right(answers):
    none = answers("standalone", "none", kind="accepted")
    assert none.tokens == answers(None, kind="accepted").tokens
    seen: Counter[int] = Counter()
    for reply in none.replies:
        for length, times in enumerate(reply.meta["spec_correct_drafts_histogram"]):
            seen[length] += times
    assert all(seen[length] for length in range(DRAFTS)), f"accepted drafts: {dict(seen)}"


@pytest.mark.long
def test_verify_counts_are_those_of_an_independent_oracle(answers, runtime, work):
    none = answers("standalone", "none")
    draft = models.make(runtime, models.HYBRID_STANDALONE_DRAFT, work / "models")
    served = [[prompt, list(tokens)] for prompt, tokens in zip(PROMPTS, none.tokens, strict=True)]
    request, answer = work / "oracle.json", work / "rounds.json"
    request.write_text(json.dumps({"draft": str(draft), "drafts": DRAFTS - 1, "served": served}))
    runtime.run_script(Path(__file__).with_name("acceptance_oracle.py"), str(request), str(answer))
    assert [reply.meta["spec_verify_ct"] for reply in none.replies] == json.loads(answer.read_text())


@pytest.mark.long
@pytest.mark.parametrize("fault", ["state_one_step_too_far", "conv_window_off_by_one"])
def test_a_wrong_commit_is_noticed(answers, fault):
    assert answers("nextn", "none", fault).tokens != answers(None).tokens


@pytest.mark.long
def test_a_request_resumes_from_a_checkpoint_that_the_commit_wrote(answers):
    plain = answers(None, kind="paged")
    for mode in ("full", "none"):
        said = answers("standalone", mode, kind="paged")
        assert [reply.cached("device") for reply in said.replies[1:]] == [64] * 3, "the checkpoint was not used"
        assert said.tokens == plain.tokens


@pytest.mark.long
def test_a_checkpoint_folded_after_the_advance_is_noticed(answers):
    wrong = answers("standalone", "none", "checkpoint_after_advance", kind="paged")
    plain = answers(None, kind="paged")
    assert wrong.tokens[0] == plain.tokens[0], "only the checkpoint is wrong"
    assert [reply.cached("device") for reply in wrong.replies[1:]] == [64] * 3
    assert wrong.tokens[1:] != plain.tokens[1:]


@pytest.mark.long
def test_ple_side_states_follow_the_accepted_drafts(answers):
    """A tiny Qwen4-Exp: its n-gram context and short convolution are committed last, from the same accepted step."""
    plain = answers(None, kind="ple")
    for mode in ("full", "none"):
        said = answers("standalone", mode, kind="ple")
        assert said.tokens == plain.tokens
        assert max(reply.accept_length for reply in said.replies) > 1.2, "the drafts are never accepted"
        assert said.pools == planned(mode, said, SideState(layers=1, channels=128, width=9, ngram_tokens=2))


@pytest.mark.long
def test_a_skipped_ple_commit_is_noticed(answers):
    assert answers("standalone", "none", "ple_commit_skipped", kind="ple").tokens != answers(None, kind="ple").tokens


@pytest.mark.long
def test_conv_states_of_another_dtype_than_the_activations_change_nothing(answers):
    """Keys and values of the drafts have the model's dtype, float16 here, not that of the conv state beside them."""
    assert (
        answers("standalone", "none", kind="wide-conv").tokens == answers("standalone", "full", kind="wide-conv").tokens
    )


@pytest.mark.long
def test_replayssm_verification_of_a_model_with_ple_is_refused_at_start(runtime, work, ple_model):
    draft = models.make(runtime, models.HYBRID_STANDALONE_DRAFT, work / "models")
    server = Server(
        runtime,
        ple_model.folder,
        {**recipes.HYBRID, **recipes.standalone(draft), "enable-linear-replayssm-spec": True},
        log=work / "ple-replayssm.log",
        environment=ple_model.environment,
        hooks=ple_model.hooks,
    )
    # as a context, so that a server which starts after all is stopped
    with pytest.raises(ServerFailed, match="incompatible with Qwen4-Exp PLE side states"), server:
        pass
