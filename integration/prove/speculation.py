"""Rows about speculation: what comes out with a draft must be what comes out without."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.prove import reference
from sm120.integration.prove.prompts import prompt
from sm120.integration.prove.reference import Verdict
from sm120.integration.prove.rows import Row, row
from sm120.integration.prove.server import Argument, Reply, Server
from sm120.integration.prove.summary import Summary

PROMPT_TOKENS = (11, 90, 36, 14)
NEW_TOKENS = 16


def prove_speculation(
    runtime: Runtime,
    *,
    group: str,
    folder: Path,
    dtype: str,
    arguments: Mapping[str, Argument],
    algorithms: Mapping[str, Mapping[str, Argument]],
    work: Path,
    summary: Summary,
    environment: Mapping[str, str] | None = None,
    hooks: Sequence[Path] = (),
) -> list[Row]:
    """Serve one batch of prompts without speculation and with each algorithm, and compare token by token.

    `algorithms` maps a name to its arguments. A row is equal when its tokens are those of the server without
    speculation, or when each difference is a tie by transformers (float16 only: rounding depends on how many tokens a
    step holds).
    """
    prompts = [prompt(number, tokens) for number, tokens in enumerate(PROMPT_TOKENS, 100)]

    def serve(name: str, extra: Mapping[str, Argument]) -> list[Reply]:
        log = work / f"{group}-{name}.log"
        with Server(runtime, folder, {**arguments, **extra}, log=log, environment=environment, hooks=hooks) as server:
            summary.started(f"{group} {name}", server)
            replies = server.generate_batch(prompts, NEW_TOKENS)
            summary.ended(f"{group} {name}", server)
        return replies

    served = {"no speculation": serve("none", {})}
    for name, extra in algorithms.items():
        served[name] = serve(name, extra)

    verdicts, _ = reference.verdicts(
        runtime,
        folder,
        prompts,
        [(index, reply.tokens) for replies in served.values() for index, reply in enumerate(replies)],
        new_tokens=NEW_TOKENS,
        tolerance=reference.TIE[dtype],
    )
    rows = []
    judged = iter(verdicts)
    for name, replies in served.items():
        accepts = name != "no speculation"
        # One prompt may well accept nothing; the algorithm as a whole must not.
        most = max(replies, key=lambda reply: reply.accept_length or 0)
        for index, reply in enumerate(replies):
            verdict = next(judged)
            if accepts:
                verdict = against_base(reply.tokens, served["no speculation"][index].tokens, verdict, dtype=dtype)
            rows.append(row(group, f"{name}, prompt {index + 1}", reply, verdict, accepts=accepts and reply is most))
    return rows


def against_base(tokens: Sequence[int], base: Sequence[int], by_reference: Verdict, *, dtype: str) -> Verdict:
    """Equal to the tokens without speculation; in float16 a difference may be a tie by the reference."""
    if tuple(tokens) == tuple(base):
        return Verdict(True, 0, None)
    if dtype == "float16" and by_reference.equal and by_reference.ties:
        return by_reference
    pairs = enumerate(zip(tokens, base, strict=False))
    different = next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(base)))
    return Verdict(False, by_reference.ties, different)
