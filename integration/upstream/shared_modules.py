"""Modules that several probes share: beside the probes here, in a package of upstream's where they are exported."""

from __future__ import annotations

import ast

from sm120.integration.series.pin import SharedTestModules

# How a probe finds the modules beside it; not needed where they are in a package.
BESIDE = "sys.path.insert(0, str(Path(__file__).parent))"


def from_package(text: str, names: list[str], shared: SharedTestModules | None) -> str:
    """`text` importing `names` from upstream's package of shared test modules; as it is without one.

    The line that put the probe's own folder on the path goes, and so do the imports that only it needed.
    """
    if shared is None or not names:
        return text
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in names and not node.level:
            _replace(lines, node, f"from {node.module} import", f"from {shared.package}.{node.module} import")
        elif isinstance(node, ast.Import) and node.names[0].name in names:
            _replace(lines, node, f"import {node.names[0].name}", f"from {shared.package} import {node.names[0].name}")
        elif isinstance(node, ast.Expr) and ast.unparse(node) == BESIDE:
            lines[node.lineno - 1] = ""
    return _without(_without("".join(lines), "import sys", "sys"), "from pathlib import Path", "Path")


def _replace(lines: list[str], node: ast.stmt, old: str, new: str) -> None:
    lines[node.lineno - 1] = lines[node.lineno - 1].replace(old, new, 1)


def _without(text: str, statement: str, name: str) -> str:
    """`text` without the line `statement` when nothing else says `name`."""
    used = any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(ast.parse(text)))
    return text if used else text.replace(f"{statement}\n", "", 1)
