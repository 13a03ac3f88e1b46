"""The whole proof: rows of caching always, rows of speculation and of the hybrid on request."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sm120.integration.build import models
from sm120.integration.build.installed_runtime import Runtime
from sm120.integration.common import storage
from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal
from sm120.integration.prove import recipes
from sm120.integration.prove.caching import DENSE_PROMPT, HYBRID_PROMPT, prove_caching
from sm120.integration.prove.rows import Row
from sm120.integration.prove.server import Argument
from sm120.integration.prove.speculation import prove_speculation
from sm120.integration.prove.summary import Summary
from sm120.integration.prove.table import print_table, write_json

# Marks the folder that the next proof may empty.
MADE = ".made-by-a-proof"


def prove(
    runtime: Path | Runtime,
    *,
    speculation: bool = False,
    hybrid: bool = False,
    caching: bool = True,
    json: Path | None = None,
    work: Path,
    hooks: Sequence[Path] = (),
    console: Console | None = None,
) -> int:
    """Prove that `runtime` (a folder with bin/python) serves; return 0 if every row holds, else 1.

    `work` keeps models (reused), and below `last` this proof's storage and server logs. `speculation` adds a dense target with
    STANDALONE and DFLASH drafts; `hybrid` adds a gated-delta-net hybrid, and with `speculation` its drafts too.
    `caching=False` leaves the four rows out. `hooks` are fault files for the proof layer, to see a proof fail.

    Raises ServerFailed when a server dies, does not come up or answers an error, ScriptFailed when no model can be made,
    Refusal `runtime-missing` for a folder that is no runtime, `proof-folder` for a `last` that no proof made.
    """
    runtime = runtime if isinstance(runtime, Runtime) else Runtime(runtime.absolute())
    kept = work.absolute() / "models"
    work = emptied(work.absolute() / "last")
    summary = Summary(work / "stand-ins.log")
    rows: list[Row] = []

    def made(model: models.Model) -> Path:
        return models.make(runtime, model, kept)

    if caching:
        disk = storage.probe(work / "storage-dense")
        summary.storage = str(disk)
        rows += prove_caching(
            runtime,
            group="dense",
            model=models.DENSE,
            folder=made(models.DENSE),
            arguments={**recipes.DENSE, **recipes.hicache(disk, page_size=16)},
            storage=disk,
            work=work,
            summary=summary,
            asked=DENSE_PROMPT,
            pressure=3,
            environment=summary.environment(),
            hooks=hooks,
        )
    if speculation:
        rows += prove_speculation(
            runtime,
            group="dense",
            folder=made(models.DENSE),
            dtype=models.DENSE.dtype,
            arguments=recipes.DENSE_TRITON,
            algorithms={
                "STANDALONE": recipes.standalone(made(models.STANDALONE_DRAFT)),
                "DFLASH": recipes.dflash(made(models.DFLASH_DRAFT)),
            },
            work=work,
            summary=summary,
            environment=summary.environment(),
            hooks=hooks,
        )
    if hybrid:
        hybrid_environment = {**recipes.HYBRID_ENVIRONMENT, **summary.environment()}
        disk = storage.probe(work / "storage-hybrid")
        summary.storage = str(disk)
        arguments: dict[str, Argument] = {**recipes.HYBRID_PAGED, **recipes.hicache(disk, page_size=64)}
        rows += prove_caching(
            runtime,
            group="hybrid",
            model=models.HYBRID,
            folder=made(models.HYBRID),
            arguments=arguments,
            storage=disk,
            work=work,
            summary=summary,
            asked=HYBRID_PROMPT,
            pressure=3,
            environment=hybrid_environment,
            hooks=hooks,
        )
        if speculation:
            rows += prove_speculation(
                runtime,
                group="hybrid",
                folder=made(models.HYBRID),
                dtype=models.HYBRID.dtype,
                arguments=recipes.HYBRID,
                algorithms={
                    "NEXTN": recipes.nextn(),
                    "STANDALONE": recipes.standalone(made(models.HYBRID_STANDALONE_DRAFT)),
                    "DFLASH": recipes.dflash(made(models.HYBRID_DFLASH_DRAFT)),
                },
                work=work,
                summary=summary,
                environment=hybrid_environment,
                hooks=hooks,
            )

    print_table(rows, summary, console or make_console())
    if json:
        write_json(rows, summary, json)
    return 0 if rows and all(row.ok for row in rows) else 1


def emptied(folder: Path) -> Path:
    """`folder`, with nothing in it: logs and pages of an earlier proof would be taken for this one's.

    Raises Refusal `proof-folder`, and leaves everything as it is, for a folder that this function did not make.
    """
    if folder.is_symlink() or (folder.exists() and not (folder / MADE).is_file()):
        raise Refusal(
            "proof-folder",
            "was not made by a proof, and a proof would empty it",
            path=folder,
            fix="move it, or name another --work",
        )
    for left in folder.parent.glob(f".{folder.name}-*"):
        if left.is_dir() and not left.is_symlink() and ((left / MADE).is_file() or not any(left.iterdir())):
            _remove(left)
    aside = folder.with_name(f".{folder.name}-{os.getpid()}")
    aside.mkdir(parents=True)
    (aside / MADE).touch()
    if folder.exists():
        # Pages are large: a removal that is interrupted must leave no `folder` that has lost its mark already.
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        folder.rename(old)
        aside.rename(folder)
        _remove(old)
    else:
        aside.rename(folder)
    return folder


def _remove(folder: Path) -> None:
    """Remove a folder that a proof made, its mark last: what an interruption leaves is known by it."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MADE:
            path.unlink()
    shutil.rmtree(folder)
