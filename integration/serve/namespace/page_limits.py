"""How many bytes of pages namespaces hold and may hold: the rules of the server's own cleaner, from its own file.

The index is the overlay `kernels/page_index/page_index.py`, standard library only. It is loaded by its path: integration
imports no kernel, and what `gc` deletes is what the server would.
"""

from __future__ import annotations

import heapq
import importlib.util
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace.namespace_store import Namespace

FILE = Path(__file__).resolve().parents[3] / "kernels" / "page_index" / "page_index.py"


def load(file: Path = FILE) -> ModuleType:
    """Execute the file of the index as a module. Raises ValueError, naming it, when it is not there."""
    if not file.is_file():
        raise ValueError(f"{file}: the page index is missing; it ships with the kernels folder")
    spec = importlib.util.spec_from_file_location("sm120_page_index", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


page_index = load()


def stored(namespace: Namespace) -> tuple[int, int] | None:
    """Files and bytes of a namespace as its index has them, in no time; None where there is no index to ask."""
    path = namespace.pages / page_index.INDEX_DIR / page_index.INDEX_FILE
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as db:
            files, used = db.execute("SELECT files, bytes FROM total").fetchone()
            return int(files), int(used)
    except (sqlite3.Error, TypeError, ValueError):
        return None


def keep_within(
    found: list[Namespace], each: int | None, total: int | None, *, delete: bool
) -> list[tuple[Namespace, int, int]]:
    """Delete the pages unused for longest until every namespace holds at most `each` bytes, all of them `total`.

    A server on a namespace does not mind: a page that is gone is a miss. Without `delete` nothing is deleted. Returns
    (namespace, pages, bytes) that went, or would go.

    Raises:
        Refusal: `namespace-pages` when a folder cannot be read or its index not be written.
    """
    indexes = [page_index.PageIndex([str(namespace.pages)]) for namespace in found]
    gone = {namespace.folder: [0, 0] for namespace in found}
    try:
        for namespace, index in zip(found, indexes, strict=True):
            _read(namespace, index)
        if delete:
            _delete(found, indexes, each, total, gone)
        else:
            _count(found, indexes, each, total, gone)
    finally:
        for index in indexes:
            index.close()
    return [(namespace, gone[namespace.folder][0], gone[namespace.folder][1]) for namespace in found]


def _read(namespace: Namespace, index: Any) -> None:
    try:
        for _ in index.reconcile():
            pass
    except (OSError, sqlite3.Error) as error:
        raise Refusal(
            "namespace-pages",
            f"cannot index the pages: {error}",
            path=namespace.pages,
            fix="run it as the server's user",
        ) from error


def _delete(
    found: list[Namespace], indexes: list[Any], each: int | None, total: int | None, gone: dict[Path, list[int]]
) -> None:
    def count(namespace: Namespace, pages: int, freed: int) -> int:
        gone[namespace.folder][0] += pages
        gone[namespace.folder][1] += freed
        return pages

    for namespace, index in zip(found, indexes, strict=True):
        while each is not None and count(namespace, *index.evict(each)):
            pass
    while total is not None:
        pages, freed, which = page_index.evict_shared(indexes, total)
        if not pages or not count(found[which], pages, freed):
            break


def _count(
    found: list[Namespace], indexes: list[Any], each: int | None, total: int | None, gone: dict[Path, list[int]]
) -> None:
    held = {}
    for namespace, index in zip(found, indexes, strict=True):
        held[namespace.folder] = index.total()[1]
        for _, size in index.by_age():
            if each is None or held[namespace.folder] <= each:
                break
            held[namespace.folder] -= size
            gone[namespace.folder][0] += 1
            gone[namespace.folder][1] += size
    left = sum(held.values())
    rows = [
        _left(index, namespace.folder, gone[namespace.folder][0])
        for namespace, index in zip(found, indexes, strict=True)
    ]
    for _, size, folder in heapq.merge(*rows):
        if total is None or left <= total:
            break
        left -= size
        gone[folder][0] += 1
        gone[folder][1] += size


def _left(index: Any, folder: Path, gone: int) -> Iterator[tuple[int, int, Path]]:
    """(used, bytes, folder) of the pages but the `gone` first."""
    for used, size in islice(index.by_age(), gone, None):
        yield used, size, folder
