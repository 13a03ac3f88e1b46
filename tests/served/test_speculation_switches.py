"""What speculation counts, checks and refuses in a served runtime. About five minutes on two idle cores:

build/dev/bin/python -m pytest -m long tests/served/test_speculation_switches.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120.integration.build import models
from sm120.integration.prove import recipes
from sm120.integration.prove.prompts import prompt
from sm120.integration.prove.server import Server, ServerFailed

pytestmark = [pytest.mark.served, pytest.mark.long, pytest.mark.timeout(1500)]

FAULTS = Path(__file__).parent / "spec_faults"
PATIENCE = {"start_timeout": 600, "request_timeout": 900}
NEW_TOKENS = 8


@pytest.fixture
def start(runtime, work, tmp_path):
    """start(model, arguments, …): a server that is not started yet."""

    def server(model: models.Model, arguments: dict, *, hooks: tuple[str, ...] = (), **environment: str) -> Server:
        return Server(
            runtime,
            models.make(runtime, model, work / "models"),
            arguments,
            log=tmp_path / "server.log",
            environment={"TORCHDYNAMO_DISABLE": "1", **environment},
            hooks=[FAULTS / f"{name}.py" for name in hooks],
            **PATIENCE,
        )

    return server


@pytest.fixture
def dflash(runtime, work) -> dict:
    return {**recipes.DENSE_TRITON, **recipes.dflash(models.make(runtime, models.DFLASH_DRAFT, work / "models"))}


def test_proposed_drafts_are_the_rows_that_ran(start, tmp_path):
    """Adaptive drafting: three drafts while a request is alone, none while there are more."""
    config, rows = tmp_path / "adaptive.json", tmp_path / "rows"
    config.write_text(json.dumps({"1": {"candidate_steps": [3]}, "2": {"candidate_steps": [0]}}))
    arguments = {
        **recipes.HYBRID,
        **recipes.nextn(),
        "speculative-adaptive": True,
        "speculative-adaptive-config": str(config),
    }
    environment = {**recipes.HYBRID_ENVIRONMENT, "VERIFIED_ROWS": str(rows), "SGLANG_SPEC_CHECK_VERIFY_WIDTH": "1"}
    with start(models.HYBRID, arguments, hooks=("report_verified_rows",), **environment) as server:
        rows.unlink(missing_ok=True)  # the health check's own
        alone = server.generate(prompt(500, 9), NEW_TOKENS)
        ran_alone = rows.read_text()
        together = server.generate_batch([prompt(501 + n, 9) for n in range(3)], NEW_TOKENS)
    steps = [tuple(map(int, line.split())) for line in rows.read_text().splitlines()]
    assert {total // requests for requests, total in steps} == {1, 4}, "both widths must have run"
    # A request that never had a draft reports no counts.
    proposed = [reply.meta.get("spec_num_proposed_drafts", 0) for reply in (alone, *together)]
    assert proposed[0] == sum(total - requests for requests, total in steps[: len(ran_alone.splitlines())])
    assert sum(proposed) == sum(total - requests for requests, total in steps)
    # Three drafts a step, whatever ran, is what the release reports.
    assert sum(proposed) < sum(3 * requests for requests, _ in steps)
    for reply, drafts in zip((alone, *together), proposed, strict=True):
        assert reply.meta.get("spec_num_correct_drafts", 0) <= drafts


def test_a_verify_of_another_width_is_refused(start, dflash):
    """The switch is read by DFLASH's worker, too: its first verify ends the server."""
    server = start(models.DENSE, dflash, hooks=("another_width",), SGLANG_SPEC_CHECK_VERIFY_WIDTH="1")
    with pytest.raises(ServerFailed), server:
        server.generate(prompt(510, 9), NEW_TOKENS)
    said = server.log.read_text()
    assert "speculative verify was to be 4 rows per request, but ran with verify input: 5" in said


def test_embeddings_in_the_wrong_dtype_end_a_dflash_server(start, dflash):
    """The twin of every DFLASH test on a float32 model: with the release's cast none of them could be served."""
    server = start(models.DENSE, dflash, hooks=("bfloat16_embeddings",))
    with pytest.raises(ServerFailed), server:
        server.generate(prompt(511, 9), NEW_TOKENS)
    assert "must have the same dtype" in server.log.read_text() or "BFloat16" in server.log.read_text()


def test_draft_overrides_that_are_no_object_are_an_argument_error(start, runtime, work):
    draft = models.make(runtime, models.STANDALONE_DRAFT, work / "models")
    arguments = {**recipes.DENSE_TRITON, **recipes.standalone(draft)}
    server = start(models.DENSE, {**arguments, "speculative-draft-json-model-override-args": "[1]"})
    with pytest.raises(ServerFailed), server:  # stopped, should it start after all
        pass
    assert "--speculative-draft-json-model-override-args must be a JSON object, got" in server.log.read_text()
