"""Upstream's list of argument names, which an exported patch that adds an argument appends to.

It is not part of the patches: two that append after the same last line could not be applied one without the other.
"""

from __future__ import annotations

import ast
import re
import textwrap

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.pin import FieldTable, Pin

_FIELD = re.compile(r"    (\w+): A\[")


def new_fields(pin: Pin, patch: Patch) -> list[str]:
    """Names of the arguments that `patch` adds and does not list itself, in the order of its diff."""
    table = pin.field_table
    if table is None or any(file.path == table.file for file in patch.files):
        return []
    return _declared(table, patch)


def _declared(table: FieldTable, patch: Patch) -> list[str]:
    return [
        found[1]
        for file in patch.files
        if file.path.startswith(table.fields)
        for hunk in file
        for line in hunk
        if line.is_added and (found := _FIELD.match(line.value))
    ]


def documentation(pin: Pin, patch: Patch) -> list[str]:
    """What upstream's page of arguments has to say of each that `patch` adds, a line each; the release has no such page."""
    table = pin.field_table
    if table is None or not table.documentation:
        return []
    return [f"document in {table.documentation}: {_documented(patch, name)}" for name in _declared(table, patch)]


def _documented(patch: Patch, name: str) -> str:
    """`--flag: help; default …; options …`, read from the declaration that the patch adds."""
    added = [line.value for file in patch.files for hunk in file for line in hunk if line.is_added]
    start = next(at for at, line in enumerate(added) if line.startswith(f"    {name}: A["))
    end = next(at for at in range(start, len(added)) if added[at].startswith("    ]"))
    (declared,) = ast.parse(textwrap.dedent("".join(added[start : end + 1]))).body
    assert isinstance(declared, ast.AnnAssign)
    given = {node.arg: node.value for node in ast.walk(declared) if isinstance(node, ast.keyword)}
    texts = [
        node for node in ast.walk(declared.annotation) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    said = ast.literal_eval(given["help"] if "help" in given else texts[0])
    options = f"; options {', '.join(ast.literal_eval(given['choices']))}" if "choices" in given else ""
    default = ast.unparse(declared.value) if declared.value else "none"
    return f"--{name.replace('_', '-')}: {said} Default {default}{options}."


def with_fields(text: str, names: list[str], patch: Patch) -> str:
    """The table `text` with `names` as its last entries.

    Raises:
        Refusal: `export-conflict` when it does not end as a tuple of strings does.
    """
    before, closing, after = text.rpartition('",\n)\n')
    if not closing:
        raise Refusal("export-conflict", "the table of argument names has another form there", path=patch.path)
    return before + "".join(f'",\n    "{name}' for name in names) + closing + after
