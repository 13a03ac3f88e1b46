"""`sm120 prefix`: send one prompt several times and show where its prefix came from each time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.endpoint import Answer, Endpoint, NotAnswered
from sm120.integration.measure.texts import text

console = make_console()


def prefix_command(
    url: Annotated[str, typer.Option(help="a running server")] = "http://127.0.0.1:30000",
    prompt: Annotated[Path | None, typer.Option(help="a file with the prompt; else a new text of --characters")] = None,
    characters: Annotated[int, typer.Option(min=64, help="length of the text that is made")] = 8000,
    times: Annotated[int, typer.Option(min=2, help="how often it is sent")] = 2,
    flush: Annotated[
        bool, typer.Option("--flush", help="drop GPU and host caches before the last, so that only storage can answer")
    ] = False,
) -> None:
    """Send one prompt twice and show the tiers of its prefix. Exit 1 when nothing came back from any."""
    asked = _read(prompt) if prompt else text(f"prefix {time.time_ns()}", characters)
    with tempfile.TemporaryDirectory() as scratch:
        endpoint = Endpoint(url, Path(scratch) / "requests.jsonl", random_weights=True)
        answers = []
        for number in range(times):
            if flush and number == times - 1:
                time.sleep(2)  # what is written through has to be on its way
                if not endpoint.flush():
                    raise Refusal("prefix-flush", f"{url} does not drop its caches", fix="without --flush")
            try:
                answers.append(endpoint.complete(asked, 1))
            except NotAnswered as error:
                raise Refusal("prefix-endpoint", str(error), fix="sm120 serve …, or a shorter --prompt") from None
    table = Table("request", "prompt", "GPU", "host", "storage", "computed", "first token")
    for number, answer in enumerate(answers, start=1):
        table.add_row(str(number), *row(answer))
    console.print(table)
    told = verdict(answers, flushed=flush)
    console.print(told or "the prefix came back")
    raise typer.Exit(1 if told else 0)


def row(answer: Answer) -> list[str]:
    """Prompt tokens, those of each tier, those computed, and seconds; what the server does not say stays empty."""
    tiers = answer.tiers or {}

    def count(value: int | None) -> str:
        return "" if value is None else f"{value:,}"

    computed = None
    if answer.prompt_tokens is not None and answer.cached_tokens is not None:
        computed = answer.prompt_tokens - answer.cached_tokens
    shown = [count(tiers.get(tier) if answer.tiers is not None else None) for tier in ("device", "host", "storage")]
    return [count(answer.prompt_tokens), *shown, count(computed), f"{answer.seconds_to_first:.3f} s"]


def verdict(answers: list[Answer], *, flushed: bool = False) -> str | None:
    """What is wrong with the last request's prefix, None when it came back."""
    last = answers[-1]
    if last.cached_tokens is None:
        return "the server does not say what was cached: start it with --enable-cache-report"
    if last.cached_tokens == 0:
        return "nothing came back: no prefix cache, a prompt of less than a page, or no state at its end (docs/is-it-working.md)"
    if flushed and not (last.tiers or {}).get("storage"):
        return "nothing came back from storage: see the log for HiCacheNixl (docs/is-it-working.md)"
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal("prefix-prompt", f"cannot be read: {error}", path=path) from None
