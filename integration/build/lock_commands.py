"""`sm120 lock`: make the locks, or say whether they are current."""

from __future__ import annotations

from typing import Annotated

import typer

from sm120.integration.build.lock import flavors, locked, make_lock, stale
from sm120.integration.common.checkout import Checkout, find_checkout
from sm120.integration.common.console import make_console, working

console = make_console()


def lock_command(
    flavor: Annotated[str | None, typer.Argument(help="cpu or cuda; all when left out")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="write nothing, ask no index; exit 1 where one is stale")
    ] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="take the newest versions that the inputs allow")] = False,
) -> None:
    """Make integration/locks/*.txt from the direct pins in *.in: exact versions, with the sha256 of every file."""
    checkout = find_checkout()
    names = [flavor] if flavor else flavors(checkout)
    if check:
        wrong = [f"{name}.txt: {line}" for name in names for line in stale(checkout, name)]
        for line in wrong:
            console.print(f"{line}; make it with: sm120 lock", markup=False, soft_wrap=True)
        if not wrong:
            console.print(f"{', '.join(names)}: current")
        raise typer.Exit(1 if wrong else 0)
    for line in make_locks(checkout, names, upgrade):
        console.print(line, markup=False, soft_wrap=True)


def make_locks(checkout: Checkout, names: list[str], upgrade: bool = False) -> list[str]:
    """Make the locks `names` and put all of them in place; what changed, one line each.

    Raises:
        Refusal: as `make_lock`; every lock is then what it was.
    """
    made = {}
    for name in names:
        with working(f"resolving {name}"):
            made[checkout.locks / f"{name}.txt"] = make_lock(checkout, name, upgrade)
    lines = []
    for path, text in made.items():
        old = versions(path.read_text()) if path.is_file() else {}
        new = versions(text)
        aside = path.with_name(f"{path.name}.tmp")
        aside.write_text(text)
        aside.replace(path)
        lines.append(f"{path.name}: {len(new)} packages, {text.count('--hash=')} hashes")
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                lines.append(f"  {name}: {old.get(name, 'not there')} → {new.get(name, 'gone')}")
    return lines


def versions(text: str) -> dict[str, str]:
    """Canonical name -> version in a lock."""
    return {name: requirement.partition("==")[2] for name, requirement in locked(text).items()}
