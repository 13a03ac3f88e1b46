"""A deliberately wrong twin of a Python module, such as a Triton kernel's: for CUDA sources see `host_library.Mutation`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def load(source: Path, folder: Path, *edits: tuple[str, str]) -> ModuleType:
    """Import a copy of `source`, written to `folder`, in which each edit has replaced the only occurrence of its old text.

    Raises ValueError when an old text does not occur exactly once.
    """
    text = source.read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"mutation: {old!r} occurs {text.count(old)} times in {source.name}, needs 1")
        text = text.replace(old, new)
    twin = folder / f"mutated_{source.name}"
    twin.write_text(text)
    spec = importlib.util.spec_from_file_location(twin.stem, twin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
