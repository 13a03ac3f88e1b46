"""`sm120 runtime`: build the runtime, and prove it before it takes its place."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer

from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal

console = make_console()


def runtime_command(
    flavor: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    prove: Annotated[bool, typer.Option(help="serve tiny models with it before it takes its place")] = False,
) -> None:
    """Build the patched runtime in build/runtime."""
    from sm120.integration.build.installed_runtime import ScriptFailed
    from sm120.integration.build.runtime import build_runtime
    from sm120.integration.common.disk import is_full
    from sm120.integration.prove.served_proof import prove as serve_and_compare
    from sm120.integration.prove.server import ServerFailed

    started = time.monotonic()
    checkout = find_checkout()

    def report(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {line}")

    def proof(home: Path, rows: Path) -> int:
        report("proving that it serves")
        try:
            return serve_and_compare(home, json=rows, work=checkout.build / "prove", console=console)
        except (ServerFailed, ScriptFailed, subprocess.TimeoutExpired, OSError) as error:
            if isinstance(error, OSError) and is_full(error):
                raise  # has a message of its own
            what = error.what if isinstance(error, Refusal) else str(error)
            where = isinstance(error, ServerFailed) and error.path
            raise Refusal("proof-failed", what, path=where or checkout.build / "prove", fix="see there") from error

    build_runtime(checkout, flavor, report, proof if prove else None)
