"""Upstream's list of argument names, which an exported patch that adds an argument appends to.

It is not part of the patches: two that append after the same last line could not be applied one without the other.
"""

from __future__ import annotations

import re

from sm120.integration.common.refusal import Refusal
from sm120.integration.series.patch_file import Patch
from sm120.integration.series.pin import Pin

_FIELD = re.compile(r"    (\w+): A\[")


def new_fields(pin: Pin, patch: Patch) -> list[str]:
    """Names of the arguments that `patch` adds and does not list itself, in the order of its diff."""
    table = pin.field_table
    if table is None or any(file.path == table.file for file in patch.files):
        return []
    return [
        found[1]
        for file in patch.files
        if file.path.startswith(table.fields)
        for hunk in file
        for line in hunk
        if line.is_added and (found := _FIELD.match(line.value))
    ]


def with_fields(text: str, names: list[str], patch: Patch) -> str:
    """The table `text` with `names` as its last entries.

    Raises:
        Refusal: `export-conflict` when it does not end as a tuple of strings does.
    """
    before, closing, after = text.rpartition('",\n)\n')
    if not closing:
        raise Refusal("export-conflict", "the table of argument names has another form there", path=patch.path)
    return before + "".join(f'",\n    "{name}' for name in names) + closing + after
