"""Sources as an upstream project formats them: what its hooks would change must not leave here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    if style.formatter == "black":
        ours = [option for name in style.first_party for option in ("--project", name)]
        isort = ["isort", "--profile=black", line_length, *ours, "--settings-path=/dev/null", f"--filename={path}", "-"]
        black = ["black", "--quiet", line_length, f"--stdin-filename={path}", "-"]
        for command in (isort, black):
            text = _run([sys.executable, "-m", *command], text, path)
        return text
    party = ", ".join(f'"{name}"' for name in style.first_party)
    imports = ["check", "--quiet", "--fix-only", "--select=I", f"--config=lint.isort.known-first-party=[{party}]"]
    for command in (imports, ["format", "--quiet"]):
        text = _run([find_ruff_bin(), *command, "--isolated", line_length, f"--stdin-filename={path}", "-"], text, path)
    return text


def styled_cpp(text: str, style: Path, path: str) -> str:
    """`text` as clang-format lays it out by the file `style`.

    Raises:
        Refusal: `export-style` when clang-format does not take it.
    """
    clang_format = Path(sys.executable).with_name("clang-format")
    return _run([str(clang_format), f"--style=file:{style}", f"--assume-filename={path}"], text, path)


def _run(command: list[str], text: str, path: str) -> str:
    # Elsewhere than in the user's folder, where a configuration of theirs would count.
    result = subprocess.run(command, input=text, capture_output=True, text=True, cwd=Path(sys.prefix))
    if result.returncode != 0:
        words = (result.stderr.strip().splitlines() or ["refused"])[-1]
        raise Refusal("export-style", f"does not format: {words}", path=path)
    return result.stdout
