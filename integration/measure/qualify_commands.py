"""`sm120 qualify`."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sm120.integration.build.runtime_record import record_or_none
from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.measure.compare import describe
from sm120.integration.measure.endpoint import Endpoint
from sm120.integration.measure.qualify import device, qualify, run_id
from sm120.integration.measure.report import write_report
from sm120.integration.measure.requests import PLANS
from sm120.integration.measure.result import Conditions
from sm120.integration.measure.trace import HARBOUR, load_trace
from sm120.integration.serve.profile import load_profile

console = make_console()


def qualify_command(
    plan: Annotated[str, typer.Argument(help="quick or full")] = "quick",
    url: Annotated[str, typer.Option(help="an OpenAI-compatible endpoint")] = "http://127.0.0.1:30000",
    profile: Annotated[str | None, typer.Option(help="the profile it was started with")] = None,
    folder: Annotated[Path, typer.Option(help="where runs are kept")] = Path("build/qualify"),
    name: Annotated[str | None, typer.Option(help="name of this run; it seeds the texts")] = None,
    trace: Annotated[Path, typer.Option(help="the agent's session to replay")] = HARBOUR,
    context: Annotated[
        int | None, typer.Option(min=512, help="longest request in tokens; else what the endpoint says it takes")
    ] = None,
) -> None:
    """Measure a served model; keep requests, answers, timing, device and a report with plots."""
    if plan not in PLANS:
        raise Refusal("qualify-plan", f"no plan {plan!r}{there_are(plan, PLANS)}")
    recorded = load_trace(trace)
    used = load_profile(profile) if profile else None
    name = name or f"{used.name if used else 'endpoint'}-{plan}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    run_id(name)
    run = folder / name
    if run.exists():
        raise Refusal("qualify-exists", "a run has that name", path=run, fix="another --name")
    # A model made of random numbers says nothing that could be judged.
    endpoint = Endpoint(url, run / "requests.jsonl", random_weights=bool(used and used.needs.made_model))
    here = device(used)
    # Nothing is made before all that can be refused was.
    run.mkdir(parents=True)
    conditions = Conditions(
        device=here["device"],
        power_limit_w=here["power_limit_w"],
        # A server without a name for its model tells the folder; where it lies is of no account.
        model=endpoint.model.rpartition("/")[2] if endpoint.model.startswith("/") else endpoint.model,
        weights=str(used.argument("quantization", used.argument("dtype", "auto"))) if used else None,
        speculation=str(used.argument("speculative-algorithm", "none")) if used else None,
        runtime=_runtime(find_checkout().runtime) if used else None,
        profile=used.name if used else None,
        sampling="greedy",
        note="through the proof layer: it shows that the parts run, not how fast" if used and used.on_cpu else "",
    )
    runtime = find_checkout().runtime if used else None

    def say(line: str) -> None:
        console.print(f"[dim]{escape(line)}[/dim]")

    result = qualify(
        endpoint,
        PLANS[plan],
        run,
        name=name,
        conditions=conditions,
        runtime=runtime,
        trace=recorded,
        context=context,
        here=here,
        say=say,
    )
    table = Table("what", "request", "value", "why not, or note")
    for one in result.measurements:
        table.add_row(*map(escape, (one.kind, describe(one), one.shown(), one.refused or one.note)))
    console.print(table)
    plots = importlib.util.find_spec("matplotlib") is not None
    console.print(f"report: {write_report(result, run, plots=plots)}")
    if not plots:
        console.print("no plots: matplotlib is not installed (build/dev/bin/pip install --editable '.[report]')")


def _runtime(folder: Path) -> str | None:
    record = record_or_none(folder)
    return record.identity[:12] if record else None
