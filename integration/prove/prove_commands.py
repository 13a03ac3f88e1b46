"""`sm120 prove`: does this runtime serve, and are its tokens right?"""

from pathlib import Path
from typing import Annotated

import typer

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.prove.served_proof import prove


def prove_command(
    runtime: Annotated[Path, typer.Option(help="Folder of the runtime (it holds bin/python).")] = Path("build/runtime"),
    speculation: Annotated[bool, typer.Option("--speculation", help="Add STANDALONE and DFLASH drafts.")] = False,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="Add a gated-delta-net hybrid.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    work: Annotated[Path, typer.Option(help="Folder for models, storage and logs.")] = Path("build/prove"),
    path: Annotated[list[Path] | None, typer.Option(help="Folder to put in front of the runtime's packages.")] = None,
    fault: Annotated[list[Path] | None, typer.Option(help="Deliberate fault to load into every server.")] = None,
) -> None:
    """Serve tiny models, ask for the same tokens from every cache tier, compare. Exit 1 unless every row holds."""
    served = Runtime(runtime.absolute(), tuple(folder.absolute() for folder in path or ()))
    raise typer.Exit(prove(served, speculation=speculation, hybrid=hybrid, json=json, work=work, hooks=fault or ()))
