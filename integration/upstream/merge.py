"""git's three-way merge of one file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sm120.integration.common.git import run_git


def merge_file(
    current: bytes, base: bytes, other: bytes, labels: tuple[str, str, str] | None = None
) -> tuple[bytes, bool]:
    """Merge into `current` what leads from `base` to `other`: (result, whether it is clean).

    Conflicts carry diff3 markers.
    """
    with tempfile.TemporaryDirectory(prefix="sm120-merge-") as name:
        folder = Path(name)
        paths = [folder / part for part in ("current", "base", "other")]
        for path, data in zip(paths, (current, base, other), strict=True):
            path.write_bytes(data)
        options = [part for label in labels or () for part in ("-L", label)]
        result = run_git(folder, "merge-file", "-p", "--diff3", *options, *map(str, paths))
    return result.stdout, result.returncode == 0
