"""`sm120 prove`: does this runtime serve, and are its tokens right?"""

from pathlib import Path
from typing import Annotated

import typer

from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common.console import make_console
from sm120.integration.prove.served_proof import prove
from sm120.integration.prove.server import ServerFailed

app = typer.Typer(pretty_exceptions_enable=False)


@app.command("prove")
def prove_command(
    runtime: Annotated[Path, typer.Option(help="Folder of the runtime (it holds bin/python).")] = Path("build/runtime"),
    speculation: Annotated[bool, typer.Option("--speculation", help="Add STANDALONE and DFLASH drafts.")] = False,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="Add a gated-delta-net hybrid.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    work: Annotated[Path, typer.Option(help="Folder for models, storage and logs.")] = Path("build/prove"),
    path: Annotated[list[Path] | None, typer.Option(help="Folder to put in front of the runtime's packages.")] = None,
    fault: Annotated[list[Path] | None, typer.Option(help="Deliberate fault to load into every server.")] = None,
) -> None:
    """Start the runtime with tiny models, ask it for the same tokens from every cache tier, and compare."""
    try:
        served = Runtime(runtime.absolute(), tuple(folder.absolute() for folder in path or ()))
        code = prove(served, speculation=speculation, hybrid=hybrid, json=json, work=work, hooks=fault or ())
    except (ServerFailed, ValueError, RuntimeError) as error:
        make_console(stderr=True).print(f"prove: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
