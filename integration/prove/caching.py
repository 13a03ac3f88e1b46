"""Four rows about one prompt: cold, from the device pool, from the host pool, from storage after a restart."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.build.models import Model
from sm120.integration.common.storage import Storage
from sm120.integration.prove import reference
from sm120.integration.prove.prompts import prompt
from sm120.integration.prove.rows import Row, row
from sm120.integration.prove.server import Argument, Reply, Server, ServerFailed
from sm120.integration.prove.summary import Summary

NEW_TOKENS = 16

# Of the first sixty prompts of these lengths, ones whose continuation hangs on tokens all over the cached pages: many
# others end in a run of one token, whatever is in the cache.
DENSE_PROMPT = prompt(44, 200)
HYBRID_PROMPT = prompt(6, 140)


def prove_caching(
    runtime: Runtime,
    *,
    group: str,
    model: Model,
    folder: Path,
    arguments: Mapping[str, Argument],
    storage: Storage,
    work: Path,
    summary: Summary,
    asked: Sequence[int],
    pressure: int,
    environment: Mapping[str, str] | None = None,
    hooks: Sequence[Path] = (),
) -> list[Row]:
    """Serve the prompt `asked` from every tier and judge each reply by transformers.

    `pressure` other prompts of that length must be enough to push the first one out of the device pool.
    """
    environment = {**storage.environment(), **(environment or {})}

    def server(name: str) -> Server:
        log = work / f"{group}-{name}.log"
        return Server(runtime, folder, arguments, log=log, environment=environment, hooks=hooks)

    with server("first") as first:
        summary.started(f"{group} first", first)
        replies: list[tuple[str, str, Reply]] = [
            ("cold", "nowhere", first.generate(asked, NEW_TOKENS)),
            ("device hit", "device", first.generate(asked, NEW_TOKENS)),
        ]
        for number in range(1, pressure + 1):
            first.generate(prompt(-number, len(asked)), 1)
        replies.append(("host hit", "host", first.generate(asked, NEW_TOKENS)))
        wait_until_written(storage)
        summary.ended(f"{group} first", first)
    with server("restarted") as restarted:
        summary.started(f"{group} restarted", restarted)
        replies.append(("storage hit after a restart", "storage", restarted.generate(asked, NEW_TOKENS)))
        summary.ended(f"{group} restarted", restarted)

    verdicts, _ = reference.verdicts(
        runtime,
        folder,
        [asked],
        [(0, reply.tokens) for _, _, reply in replies],
        new_tokens=NEW_TOKENS,
        tolerance=reference.TIE[model.dtype],
    )
    return [
        row(group, step, reply, verdict, wanted=wanted)
        for (step, wanted, reply), verdict in zip(replies, verdicts, strict=True)
    ]


def wait_until_written(storage: Storage, *, quiet_for: float = 1.5, timeout: float = 60) -> None:
    """Return when the storage has files and neither their number nor their sizes changed for `quiet_for` seconds.

    Backups run in the background and the HTTP API does not tell when they are done. Raises ServerFailed after
    `timeout`.
    """
    deadline = time.monotonic() + timeout
    seen: dict[Path, int] = {}
    since = time.monotonic()
    while time.monotonic() < deadline:
        now = storage.files()
        if now != seen:
            seen, since = now, time.monotonic()
        elif now and time.monotonic() - since >= quiet_for:
            return
        time.sleep(0.1)
    raise ServerFailed(f"{storage.folder}: {len(seen)} files after {timeout:.0f} s, and still changing or none at all")
