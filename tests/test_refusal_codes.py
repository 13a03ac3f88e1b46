"""Every code of a refusal is in docs/errors.md, and every code there is one that can be met."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]


def codes(tree: ast.AST) -> Iterator[str]:
    """The first argument of every Refusal, every default and argument `code`, and the three codes of each manifest."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in ("Refusal", "refuse", "__init__") and node.args:
                yield from texts(node.args[0])
            if called == "read_manifest":
                yield from (f"{kind}-{what}" for kind in texts(node.args[2]) for what in ("missing", "syntax", "field"))
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from texts(keyword.value)
        elif isinstance(node, ast.FunctionDef):
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
                if argument.arg == "code" and default is not None:
                    yield from texts(default)


def texts(node: ast.expr) -> list[str]:
    """What an expression can be; nothing for a name or an f-string, which get theirs from elsewhere."""
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)] * (
        not isinstance(node, ast.JoinedStr)
    )


def in_tables(page: Path) -> set[str]:
    """The codes in the first column of the tables of `page`; `pin-*` stands for all that begin so."""
    rows = re.findall(r"^\| (`[^|]+`) \|", page.read_text(), re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([a-z*-]+)`", row)}


def test_every_code_is_listed():
    modules = [path for path in (ROOT / "integration").rglob("*.py") if "tests" not in path.parts]
    used = {code for path in modules for code in codes(ast.parse(path.read_text()))}
    assert len(used) > 100 and {"artifact-hash", "pin-syntax", "export-git"} <= used, "codes are not found any more"
    listed = in_tables(ROOT / "docs" / "errors.md")
    assert not sorted(code for code in used if not any(fnmatchcase(code, name) for name in listed))
    assert not sorted(name for name in listed if not any(fnmatchcase(code, name) for code in used)), (
        "nothing refuses so"
    )
