"""`sm120 namespace`: derive a folder from what the bytes mean, explain two of them, and keep the pile small."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from sm120.integration.build.identity import digest
from sm120.integration.build.runtime_record import parse_record
from sm120.integration.common.console import make_console
from sm120.integration.common.sizes import parse_bytes
from sm120.integration.serve.namespace import namespace_store as store
from sm120.integration.serve.namespace.checkpoint import HashCache, read_checkpoint
from sm120.integration.serve.namespace.namespace_identity import (
    differences,
    directory_name,
    identity,
    parse_serving,
    with_environment,
)
from sm120.integration.serve.namespace.page_limits import keep_within, stored

app = typer.Typer(no_args_is_help=True, help="Folders for stored pages, named by what the pages mean.")
console, log = make_console(), make_console(stderr=True)

Root = Annotated[Path, typer.Option(help="folder of all namespaces")]


@app.command("derive")
def derive(
    root: Root,
    model: Annotated[Path, typer.Option(help="checkpoint folder of the target")],
    runtime: Annotated[Path, typer.Option(help="runtime.json of the runtime that will serve")],
    field: Annotated[list[str], typer.Option(help="NAME=VALUE, one per setting that decides the bytes")],
    draft: Annotated[Path | None, typer.Option(help="checkpoint folder of the draft model")] = None,
    label: Annotated[str | None, typer.Option(help="readable part; the model folder's name when left out")] = None,
    full_hash: Annotated[bool, typer.Option(help="hash every shard even where the hub recorded its hash")] = False,
    workers: Annotated[int, typer.Option(help="shards hashed at once")] = 4,
    dry_run: Annotated[bool, typer.Option(help="print the folder and create nothing")] = False,
    print_identity: Annotated[bool, typer.Option(help="print the identity instead of the folder")] = False,
) -> None:
    """Print the folder for SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR, creating its namespace or checking that it matches.

    SGLANG_… variables that are set here count as settings: start the server from the same environment. Hashing can be
    interrupted: shards that are done are remembered below ROOT.
    """
    serving = with_environment(parse_serving(field), os.environ)
    runtime_hash = parse_record(runtime).identity
    cache = HashCache(root / ".hashes.json")
    models = {}
    with Progress(
        "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=log
    ) as bars:
        for role, folder in {"target": model, **({"draft": draft} if draft else {})}.items():
            bar = bars.add_task(f"{role} {folder.name}")

            def show(done: int, total: int, bar: TaskID = bar) -> None:
                bars.update(bar, completed=done, total=total)

            models[role] = read_checkpoint(
                folder,
                cache,
                workers=workers,
                trust_download=not full_hash,
                progress=show,
            )
    wanted = identity(models, runtime_hash, serving)
    label = label or model.resolve().name
    if print_identity:
        typer.echo(json.dumps({"sha256": digest(wanted), "identity": wanted}, indent=1, sort_keys=True))
    elif dry_run:
        typer.echo(root / directory_name(label, wanted) / store.PAGES)
    else:
        typer.echo(store.open_namespace(root, label, wanted).pages)


@app.command("explain")
def explain(one: Path, other: Path) -> None:
    """Show every field in which two namespaces differ. Exit 1 when there is any."""
    first, second = store.read_namespace(one), store.read_namespace(other)
    found = differences(first.identity, second.identity)
    if not found:
        console.print("the same identity")
        return
    table = Table("field", one.name, other.name)
    for name, left, right in found:
        table.add_row(name, json.dumps(left), json.dumps(right))
    console.print(table)
    raise typer.Exit(1)


@app.command("list")
def list_namespaces(root: Root) -> None:
    """Show every namespace, most recently used first, with what its index holds, and folders that are none."""
    found, refused = store.namespaces(root)
    table = Table("namespace", "label", "last used", "files", "GB", "active")
    for namespace in found:
        held = stored(namespace)
        table.add_row(
            namespace.folder.name,
            namespace.label,
            f"{store.age(namespace.last_used)} ago",
            f"{held[0]:,}" if held else "?",
            f"{held[1] / 1e9:,.2f}" if held else "?",
            "yes" if namespace.active else "",
        )
    console.print(table)
    for refusal in refused:
        console.print(f"not a namespace: {refusal}", markup=False)


@app.command("du")
def du(root: Root) -> None:
    """Count how many files and bytes every namespace holds, by looking at each file."""
    table = Table("namespace", "files", "GB")
    for namespace in store.namespaces(root)[0]:
        files, used = namespace.usage()
        table.add_row(namespace.folder.name, f"{files:,}", f"{used / 1e9:,.2f}")
    console.print(table)


@app.command("gc")
def gc(
    root: Root,
    keep: Annotated[int, typer.Option(help="namespaces of each label to keep, last used first")] = 2,
    each: Annotated[str | None, typer.Option(help="bytes that a namespace may keep, such as 500GB")] = None,
    total: Annotated[str | None, typer.Option(help="bytes that all of them together may keep")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="delete; without it only say what would be")] = False,
) -> None:
    """Remove old namespaces, then of the others the pages unused for longest, the end of a prefix first.

    The last used namespaces of each label and those in use stay, and so does every other folder. Pages go by the rules
    of the server's own cleaner, from namespaces in use, too: a page that is gone is computed again.
    """
    limits = [parse_bytes(text) if text is not None else None for text in (each, total)]
    verdicts = store.collect(root, keep, delete=delete)
    stays = [namespace for namespace, verdict in verdicts if verdict in ("kept", "active")]
    limited = any(limit is not None for limit in limits)
    gone = {
        namespace.folder: (pages, freed)
        for namespace, pages, freed in (keep_within(stays, *limits, delete=delete) if limited else [])
    }
    table = Table("namespace", "last used", "GB", "verdict")
    for namespace, verdict in verdicts:
        pages, freed = gone.get(namespace.folder, (0, 0))
        if pages:
            verdict += f", {pages:,} pages ({freed / 1e9:,.2f} GB) {'deleted' if delete else 'would go'}"
        used = namespace.usage()[1] / 1e9 if namespace.folder.exists() else 0.0
        table.add_row(namespace.folder.name, f"{store.age(namespace.last_used)} ago", f"{used:,.2f}", verdict)
    console.print(table)
