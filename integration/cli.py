"""The command line: `sm120 COMMAND`. A table of commands; what a command needs is imported when it is run."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from sm120.integration.common.refusal import Refusal


class Entry(NamedTuple):
    """A command: where its function or Typer application is, below sm120.integration, and its line in `sm120 --help`."""

    where: str
    says: str
    tables: bool = False  # prints tables and has no --json of its own: it gets one


COMMANDS: dict[str, dict[str, Entry]] = {
    "Build": {
        "runtime": Entry("prove.runtime_commands:runtime_command", "Build the patched runtime in build/runtime."),
        "lock": Entry("build.lock_commands:lock_command", "Make the dependency locks, or check that they are current."),
        "doctor": Entry("build.doctor_commands:doctor_command", "Say what this machine is, and what is installed."),
    },
    "Serve": {
        "profiles": Entry("serve.serve_commands:profiles_command", "List the profiles.", tables=True),
        "plan": Entry(
            "serve.plan_commands:plan_command", "Show what fits: pools, tokens, slots, host tier.", tables=True
        ),
        "serve": Entry("serve.serve_commands:serve_command", "Check this machine for a profile and become its server."),
        "assert-startup": Entry(
            "serve.startup.startup_commands:assert_startup_command", "Did the intended path start?", tables=True
        ),
        "prefix": Entry(
            "measure.prefix_commands:prefix_command", "Where does the prefix of a prompt come from?", tables=True
        ),
        "metrics": Entry(
            "serve.metrics.metrics_page:metrics_command", "Serve a live page of a running server.", tables=True
        ),
        "namespace": Entry(
            "serve.namespace.namespace_commands:app", "Folders for stored pages, named by their meaning.", tables=True
        ),
    },
    "Prove and measure": {
        "prove": Entry(
            "prove.prove_commands:prove_command", "Serve tiny models; are the tokens right from every tier?"
        ),
        "prove-persistence": Entry(
            "prove.persistence.persistence_commands:prove_persistence_command",
            "The same across restarts, kill -9, damage.",
            tables=True,
        ),
        "faults": Entry(
            "prove.persistence.persistence_commands:faults_command", "Damage stored pages in every way.", tables=True
        ),
        "nixl-check": Entry("prove.nixl_check.nixl_commands:app", "Which queue of NIXL is safe here?"),
        "qualify": Entry(
            "measure.qualify_commands:qualify_command", "Measure a served model, with a report.", tables=True
        ),
        "results": Entry(
            "measure.results_commands:results_command", "List the results, shipped and measured here.", tables=True
        ),
        "compare": Entry("measure.results_commands:compare_command", "Compare two results.", tables=True),
        "bench": Entry("measure.bench_commands:app", "Measure the pipeline, the storage path, or a kernel."),
        "ptx": Entry("measure.ptx_commands:ptx_command", "Run a kernel's PTX for sm_120a on this CPU.", tables=True),
    },
    "Patches": {
        "status": Entry("upstream.status_commands:status_command", "What is known about every patch, and how fresh."),
        "series": Entry("upstream.series_commands:app", "Look at, check, rewrite and edit a patch series."),
        "kernel": Entry("series.kernel_commands:app", "Begin a kernel module."),
        "probe": Entry("upstream.probe_commands:probe_command", "Is a patch's test red without it and green with it?"),
        "mutate": Entry("upstream.mutate_commands:mutate_command", "Does a patch's test notice a wrong patch?"),
        "closure": Entry("upstream.patch_commands:closure_command", "The earlier patches that one needs."),
        "export": Entry("upstream.patch_commands:export_command", "A patch as upstream commits, with a PR text."),
        "readme": Entry("upstream.probe_commands:readme_command", "Write the patch tables of the READMEs."),
    },
    "Releases": {
        "matrix": Entry("upstream.version_commands:matrix_command", "What every patch is on every listed release."),
        "bump": Entry("upstream.version_commands:bump_command", "Try the series on another release; change the pin."),
        "watch": Entry("upstream.version_commands:watch_command", "Look for new releases, and try the series on them."),
        "detector": Entry("upstream.detector_commands:detector_command", "How often is the matrix right?"),
    },
}


class CommandTable(TyperGroup):
    """Lists COMMANDS by what a reader is after, and imports the one that is run or asked for its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {
            name: TyperCommand(name, help=entry.says, rich_help_panel=title)
            for title, group in COMMANDS.items()
            for name, entry in group.items()
        }

    def list_commands(self, context: Any) -> list[str]:
        return list(self.commands)  # in the order of the table

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        name, command, rest = super().resolve_command(context, arguments)
        if name is None or command is None:
            return name, command, rest
        return name, load(name), rest


def load(name: str) -> Any:
    """The real command called `name`."""
    entry = next(group[name] for group in COMMANDS.values() if name in group)
    module, _, attribute = entry.where.partition(":")
    found = getattr(importlib.import_module(f"sm120.integration.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer()
        alone.command(name)(found)
        found = alone
    found._add_completion = False  # completes `sm120 COMMAND`, which is the outer command's to install
    command = typer.main.get_command(found)
    command.name = name
    if entry.tables:
        add_json(command)
    return command


def add_json(command: Any) -> None:
    """Give `command`, or each one of a group, `--json`: its tables become JSON, one a line."""
    for one in getattr(command, "commands", {}).values():
        add_json(one)
    if hasattr(command, "commands") or any("--json" in parameter.opts for parameter in command.params):
        return
    donor = typer.Typer(add_completion=False)
    donor.command()(_json)
    option = next(one for one in typer.main.get_command(donor).params if "--json" in one.opts)
    option.expose_value = False
    command.params.append(option)


def _print_json(asked: bool) -> None:
    from sm120.integration.common.console import print_json

    print_json(asked)


def _json(
    json: Annotated[
        bool,
        typer.Option(
            "--json", callback=_print_json, help="print each table as a line of JSON, all else on standard error"
        ),
    ] = False,
) -> None:
    """Never run: lends its option to every command that prints tables."""


app = typer.Typer(
    cls=CommandTable,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"sm120 {version('sm120-runtime')}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Small patches and tested kernels for released SGLang, FlashInfer and NIXL on SM120."""


def main() -> None:
    """Entry point: a refusal becomes its message and exit code 2; 1 is left to commands whose check said no.

    With SM120_DEBUG set, the traceback stands before the message.
    """
    try:
        app()
        return
    except Exception as error:
        said = _refusal_of(error)
        if said is None:
            raise
        if os.environ.get("SM120_DEBUG"):
            traceback.print_exception(error)
    from sm120.integration.common.console import make_console

    make_console(stderr=True).print(f"error: {said}", markup=False, soft_wrap=True)
    sys.exit(2)


def _refusal_of(error: Exception) -> Refusal | None:
    from sm120.integration.common.disk import is_full
    from sm120.integration.common.refusal import Refusal

    if isinstance(error, Refusal):
        return error
    if isinstance(error, UnicodeError):
        return Refusal("text-encoding", f"not text that can be read: {error}")
    if not isinstance(error, OSError):
        return None
    full = is_full(error)
    return Refusal("disk-full" if full else "os-error", error.strerror or str(error), path=error.filename)
