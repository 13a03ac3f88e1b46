"""Command line of the workshop: `sm120 COMMAND`."""

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
