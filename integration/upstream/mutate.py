"""Do the tests of a patch notice when the patch is wrong? Its mutants, each in a throwaway tree, against its probe."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.mutants import Mutant, mutants_of
from sm120.integration.series.patch_file import Patch
from sm120.integration.upstream.probes import probe_modules, tree_environment

SLOWEST = 20.0  # a mutant may take this many times as long as the patch itself, and is caught when it does not end
PATIENCE = 120.0  # seconds that every mutant has
FIRST = 600.0  # seconds that the patch itself has


@dataclass(frozen=True)
class Score:
    """What the probe of one patch noticed."""

    patch: str
    """Names the patch and its probe's files, by content."""
    caught: int
    survivors: tuple[dict[str, Any], ...]
    """Kind, file, line and what it says there, of each mutant that the probe took for the patch."""
    moved: tuple[str, ...]
    """Hunks without mutants: a later patch has rewritten them."""

    @property
    def mutants(self) -> int:
        return self.caught + len(self.survivors)


def fingerprint(checkout: Checkout, patch: Patch) -> str:
    """Names `patch` and the files of its probe by their content."""
    digest = hashlib.sha256(patch.path.read_bytes())
    for path in probe_modules(checkout, patch):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def mutate(
    checkout: Checkout,
    patch: Patch,
    tree: Path,
    *,
    workers: int = 1,
    told: Callable[[int, int, Mutant, str], None] = lambda *_: None,
) -> Score:
    """Run the probe of `patch` on every mutant of the patched `tree`.

    What an earlier, interrupted run found is taken from build/mutants. `told` hears of each mutant: how many are done, of
    how many, which, and `caught`, `survived` or `did not end`.

    Raises:
        Refusal: `mutate-not-green` when the probe does not pass on the tree itself; `mutate-no-mutants`.
    """
    mutants, moved = mutants_of(patch, lambda file: (tree / file).read_text())
    if not mutants:
        raise Refusal("mutate-no-mutants", f"{patch.slug} has no line of its own left to make wrong", path=patch.path)
    name = fingerprint(checkout, patch)
    notes = checkout.build / "mutants" / f"{patch.slug}-{name}.json"
    known: dict[str, str] = json.loads(notes.read_text()) if notes.is_file() else {}
    todo = [mutant for mutant in mutants if mutant.key not in known]
    done = len(mutants) - len(todo)
    if todo:
        with _throwaway_trees(checkout, tree, workers) as trees:
            began = time.monotonic()
            copy = trees.get()
            if _passes(checkout, patch, copy, FIRST) is not True:
                raise Refusal(
                    "mutate-not-green", f"the probe of {patch.slug} does not pass on the patched tree", path=patch.path
                )
            trees.put(copy)
            limit = max(PATIENCE, SLOWEST * (time.monotonic() - began))

            def run(mutant: Mutant) -> tuple[Mutant, str]:
                copy = trees.get()
                try:
                    with _mutated(copy / mutant.file, mutant.text):
                        passed = _passes(checkout, patch, copy, limit)
                finally:
                    trees.put(copy)
                return mutant, {True: "survived", False: "caught", None: "did not end"}[passed]

            with ThreadPoolExecutor(workers) as pool:
                for mutant, outcome in pool.map(run, todo):
                    known[mutant.key] = outcome
                    _write(notes, json.dumps(known))
                    done += 1
                    told(done, len(mutants), mutant, outcome)
    survivors = [mutant for mutant in mutants if known[mutant.key] == "survived"]
    shown = tuple({key: value for key, value in asdict(mutant).items() if key != "text"} for mutant in survivors)
    return Score(name, len(mutants) - len(survivors), shown, tuple(moved))


def _passes(checkout: Checkout, patch: Patch, tree: Path, limit: float) -> bool | None:
    """Whether the probe passes with `tree` in front; None when it does not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", patch.fields["Probe"]]
    # A mutant that hangs may have children; they go with its process group.
    process = subprocess.Popen(
        command,
        cwd=checkout.root,
        env=tree_environment(checkout, tree),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _throwaway_trees(checkout: Checkout, tree: Path, count: int) -> Iterator[SimpleQueue[Path]]:
    """`count` copies of `tree` whose files are links to its own, and must be replaced, never written."""
    folder = checkout.build / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="tree-", dir=folder) as name:
        for number in range(count):
            copy = Path(name) / str(number)
            shutil.copytree(tree, copy, copy_function=os.link, symlinks=True)
            copies.put(copy)
        yield copies


@contextmanager
def _mutated(path: Path, text: str) -> Iterator[None]:
    aside = path.with_name(f"{path.name}.whole")
    path.rename(aside)
    try:
        path.write_text(text)
        yield
    finally:
        aside.replace(path)


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    aside.replace(path)
