"""Python as an upstream project formats it: what it would reformat must not leave here."""

from __future__ import annotations

import subprocess

from ruff import find_ruff_bin

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import PythonStyle


def styled(text: str, style: PythonStyle | None, path: str) -> str:
    """`text` with its imports sorted and its lines laid out as `style` says; as it is when upstream says nothing.

    Only layout changes, so what was tested is what is sent.

    Raises:
        Refusal: `export-style` when `text` is not Python.
    """
    if style is None:
        return text
    line_length = f"--line-length={style.line_length}"
    party = ", ".join(f'"{name}"' for name in style.first_party)
    imports = ["check", "--quiet", "--fix-only", "--select=I", f"--config=lint.isort.known-first-party=[{party}]"]
    for command in (imports, ["format", "--quiet"]):
        text = _ruff([*command, "--isolated", line_length, f"--stdin-filename={path}", "-"], text, path)
    return text


def _ruff(arguments: list[str], text: str, path: str) -> str:
    result = subprocess.run([find_ruff_bin(), *arguments], input=text, capture_output=True, text=True)
    if result.returncode != 0:
        words = (result.stderr.strip().splitlines() or ["refused"])[-1]
        raise Refusal("export-style", f"does not format: {words}", path=path)
    return result.stdout
