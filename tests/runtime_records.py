"""`runtime.json` of a runtime that was never built, for tests of what reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sm120.integration.build.runtime_record import FILE, Ingredients, RuntimeRecord, write_record


def record(flavor: str = "cpu", **changes: Any) -> RuntimeRecord:
    values = {"identity": "ab" * 32, "deps": "cpu-2", "projects": {}, "versions": {}}
    given = {**values, "host_compiler": None, "nvcc": None, **changes}
    return RuntimeRecord(ingredients=Ingredients(flavor=flavor), **given)


def written(home: Path, flavor: str = "cpu", **changes: Any) -> Path:
    """Write a record into `home`, which need not be there; returns its file."""
    home.mkdir(parents=True, exist_ok=True)
    write_record(home, record(flavor, **changes))
    return home / FILE
