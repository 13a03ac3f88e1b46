"""The user's own pip, with its configuration: index, proxy, certificates and find-links are theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sm120.integration.common.disk import refuse_if_full

Answer = subprocess.CompletedProcess[str]


def pip(*arguments: str, doing: str, where: Path, python: Path | None = None, bar: bool = False) -> Answer:
    """Run pip for this interpreter's environment or for that of `python`; what it answers, whatever that is.

    `doing` and `where` are for a disk that is full. With `bar` its standard output goes to ours, progress bar and all.

    Raises:
        Refusal: `disk-full`.
    """
    other = [f"--python={python}"] if python else []
    answer = subprocess.run(
        [sys.executable, "-m", "pip", *other, "--disable-pip-version-check", *arguments],
        stdout=None if bar else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    if answer.returncode != 0:
        refuse_if_full(f"{answer.stdout}{answer.stderr}", doing, where)
    return answer


def reason(answer: Answer, nothing: str = "pip gave no reason") -> str:
    """The last error that pip named; where it named none, the last line that it said."""
    lines = [line for line in f"{answer.stdout or ''}\n{answer.stderr}".splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return ([nothing] + (errors or lines[-1:]))[-1].strip()
