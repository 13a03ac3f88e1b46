"""`sm120 faults`, `sm120 bench persistence` and `sm120 prove-persistence`: the tables of docs/persistence.md and storage-measured.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal, there_are

console, log = make_console(), make_console(stderr=True)
RuntimeFolder = Annotated[
    Path | None,
    typer.Option(help="runtime folder; SM120_RUNTIME when left out, else build/runtime", show_default=False),
]
Folder = Annotated[Path, typer.Option(help="where to put test files: on the file system you will use")]


def faults_command(
    runtime: RuntimeFolder = None,
    folder: Folder = Path("build/faults"),
    long: Annotated[bool, typer.Option(help="hundreds of tries per fault instead of tens")] = False,
) -> None:
    """Damage stored pages in every way and count what a restore makes of it. Exit 1 on wrong state or an exception."""
    from sm120.integration.prove.persistence.faults import failures, run_faults, table

    rows = run_faults(
        Runtime.chosen(runtime),
        folder,
        long=long,
        progress=lambda row: log.print(row.fault, row.checksum, row.tries),
    )
    console.print(table(rows))
    found = failures(rows)
    for line in found:
        console.print(f"[red]{line}[/red]")
    raise typer.Exit(1 if found else 0)


def bench_command(
    runtime: RuntimeFolder = None,
    folder: Folder = Path("build/bench-persistence"),
    rounds: Annotated[int, typer.Option(help="measured rounds of each variant in each process")] = 3,
    processes: Annotated[int, typer.Option(help="how many processes: each has its luck with memory")] = 4,
    short: Annotated[bool, typer.Option(help="one page size only")] = False,
    fio: Annotated[bool, typer.Option(help="measure what fio reaches on the same disk, too")] = True,
) -> None:
    """Write and restore pages through the patched path beside fio, after a check that every page arrives."""
    from sm120.integration.prove.persistence.storage_bench import SHORT_SIZES, SIZES, costs, run_bench, table

    sizes = SHORT_SIZES if short else SIZES
    timings = run_bench(Runtime.chosen(runtime), folder, sizes=sizes, rounds=rounds, processes=processes, fio=fio)
    console.print(table(timings))
    console.print(costs(timings))


def bench_namespace_command(
    runtime: RuntimeFolder = None,
    folder: Folder = Path("build/bench-namespace"),
    files: Annotated[list[int] | None, typer.Option(help="files of a namespace; 1000, 100000 and 1000000")] = None,
) -> None:
    """Look after namespaces of many sparse pages, with the index and without, after a check that no other page goes."""
    from sm120.integration.prove.persistence.index_bench import COUNTS, run_scale, scale_table

    if any(count < 1000 or count % 20 for count in files or ()):
        raise Refusal("bench-rounds", f"--files {files}: at least 1000 each, and a multiple of 20")
    found = run_scale(Runtime.chosen(runtime), folder, tuple(files) if files else COUNTS)
    console.print(scale_table(found))


def prove_persistence_command(
    runtime: RuntimeFolder = None,
    work: Annotated[Path, typer.Option(help="where models, logs and pages go")] = Path("build/prove-persistence"),
    model: Annotated[str, typer.Option(help="dense, hybrid or both")] = "both",
) -> None:
    """Serve prompts cold, from every tier, after restarts, kill -9 and damage. Exit 1 unless all tokens are equal."""
    from sm120.integration.prove.persistence.end_to_end import SETUPS, failures, run_setup, table

    if model not in (*SETUPS, "both"):
        raise Refusal("model-unknown", f"--model is {model!r}{there_are(model, [*SETUPS, 'both'])}")
    found = []
    for name in SETUPS if model == "both" else (model,):
        lines = run_setup(
            name,
            Runtime.chosen(runtime),
            work,
            damage=True,
            progress=lambda line: log.print(line.step, line.prompt, "equal" if line.equal else "NOT EQUAL"),
        )
        console.print(table(name, lines))
        found += [f"{name}: {line}" for line in failures(lines)]
    for line in found:
        console.print(f"[red]{line}[/red]")
    raise typer.Exit(1 if found else 0)
