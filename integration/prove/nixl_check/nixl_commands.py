"""`sm120 nixl-check`: which queue of an installed NIXL to use, and what is wrong with the others."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sm120.integration.common.console import make_console
from sm120.integration.prove.nixl_check.nixl_matrix import CASES, QUEUES, Matrix, Row, run_matrix

app = typer.Typer(no_args_is_help=False)
MARKS = {"pass": "pass", "fail": "FAIL", "not run": "-"}


@app.callback(invoke_without_command=True)
def nixl_check(
    python: Annotated[Path, typer.Option(help="Python that imports the NIXL to check")] = Path(sys.executable),
    folder: Annotated[Path, typer.Option(help="Where to put test files: the file system you will use")] = Path("."),
    case: Annotated[list[str] | None, typer.Option(help="Only these cases")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="Only these queues: uring, aio, posix_aio")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a case may take")] = 60.0,
    pythonpath: Annotated[str | None, typer.Option(help="PYTHONPATH for that Python, e.g. an unpacked wheel")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the rows as JSON")] = False,
) -> None:
    """Run every conformance case on every queue and recommend a setting. Exit code 1 when no queue is known to be safe."""
    console, log = make_console(), make_console(stderr=True)

    def progress(row: Row) -> None:
        log.print(f"{row.case:28s} {row.queue:10s} {row.result} {row.detail}", highlight=False)

    matrix = run_matrix(
        python,
        folder,
        cases=case or None,
        queues=tuple(queue) if queue else QUEUES,
        timeout=timeout,
        pythonpath=pythonpath,
        progress=progress,
    )
    if json_output:
        print(matrix.model_dump_json(indent=1))
    else:
        show(matrix, console)
    raise typer.Exit(0 if matrix.recommended() else 1)


def show(matrix: Matrix, console: Console) -> None:
    queues = [queue for queue in QUEUES if any(row.queue == queue for row in matrix.rows)]
    table = Table(title=f"NIXL {matrix.version}, POSIX plugin")
    for column in ("case", "what must hold", *queues, "made harmless by"):
        table.add_column(column)
    for case, (promise, guard) in CASES.items():
        rows = [matrix.row(case, queue) for queue in queues]
        if any(rows):
            table.add_row(case, promise, *(MARKS[row.result] if row else "" for row in rows), guard)
    console.print(table)
    for row in matrix.rows:
        if row.result != "pass":
            console.print(f"{row.case}, {row.queue}: {row.detail}", highlight=False)
    queue = matrix.recommended()
    if queue is None:
        if any(map(matrix.ran, queues)):
            console.print(f"\nNo queue of NIXL {matrix.version} is safe. Use another version.", highlight=False)
        else:
            console.print("\nNo case could be run here, so no queue is recommended.", highlight=False)
        return
    console.print(f"\nRecommended: {queue}\n\n{matrix.setting()}", highlight=False, markup=False)
