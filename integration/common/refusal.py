"""The one way this project says no: what is wrong, where, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

TRY_DEBUG = "SM120_DEBUG=1 shows all that it said"
"""The fix of a refusal that quotes only the last line of another program; a note of the exception has the others."""


class Refusal(Exception):
    """Bad input, named.

    Args:
        code: stable short name, e.g. `artifact-hash`; docs/errors.md lists them all.
        what: what is wrong, with what was found and what was needed.
        path: the file at fault.
        line: 1-based line in `path`.
        fix: the command or edit that would make it right.
    """

    def __init__(
        self, code: str, what: str, *, path: Path | str | None = None, line: int | None = None, fix: str | None = None
    ) -> None:
        self.code = code
        self.what = what
        self.path = path
        self.line = line
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}:{self.line}: " if self.line else f"{self.path}: "
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"[{self.code}] {where}{self.what}{fix}"


def there_are(name: str, known: Iterable[str]) -> str:
    """The end of a refusal of an unknown `name`: what is spelled like it, or all there is.

    `; did you mean gdn-beta-fp32?`, `; there are: a, b`.
    """
    known = list(known)
    alike = difflib.get_close_matches(name, known, n=3, cutoff=0.6) or [each for each in known if name in each][:5]
    if alike:
        return f"; did you mean {' or '.join(alike)}?"
    return f"; there are: {', '.join(known)}"
