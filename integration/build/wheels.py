"""Repack a patched tree as a wheel: local version, correct RECORD, same inputs → same bytes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from sm120.integration.build.tree import build_aside
from sm120.integration.common.disk import refuse_if_full
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.pin import Pin

# The first moment that a zip archive can name; any fixed one would do.
ZIP_EPOCH = "315532800"


def repack(tree: Path, pin: Pin, local: str, destination: Path) -> Path:
    """Pack `tree` (a patched, unpacked wheel) as `VERSION+local` into the folder `destination`.

    Returns the wheel's path. `tree` itself stays as it is.

    Raises:
        Refusal: `wheel-metadata` when the tree is not an unpacked wheel of the pin; `wheel-pack`; `disk-full`.
    """
    version = f"{pin.version}+{local}"

    def pack(aside: Path) -> None:
        staging = aside / "tree"
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(tree, staging, copy_function=_link_or_copy, symlinks=True, ignore=without)
        _rename_version(staging, pin, version)
        _normalise_modes(staging)
        result = subprocess.run(
            [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(aside), str(staging)],
            env=dict(os.environ, SOURCE_DATE_EPOCH=ZIP_EPOCH, PYTHONHASHSEED="0"),
            capture_output=True,
            text=True,
        )
        shutil.rmtree(staging)
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            refuse_if_full(result.stderr, f"packing {pin.distribution}", tree)
            raise Refusal("wheel-pack", f"{pin.distribution}: {reason}", path=tree)

    return next(build_aside(destination, pack).glob("*.whl"))


def _link_or_copy(source: str, target: str) -> None:
    """Packing only reads, except what `_rename_version` and `_normalise_modes` replace: link, do not copy 450 MB."""
    if ".dist-info" in source:
        shutil.copy2(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _rename_version(tree: Path, pin: Pin, version: str) -> None:
    old = f"{pin.distribution}-{pin.version}"
    info = tree / f"{old}.dist-info"
    metadata = info / "METADATA"
    if not metadata.is_file():
        raise Refusal("wheel-metadata", f"no {info.name}/METADATA in the tree", path=tree)
    text = metadata.read_text()
    renamed, count = re.subn(rf"(?m)^Version: {re.escape(pin.version)}$", f"Version: {version}", text, count=1)
    if count != 1:
        raise Refusal("wheel-metadata", f"METADATA has no line 'Version: {pin.version}'", path=metadata)
    metadata.write_text(renamed)
    (info / "RECORD").unlink(missing_ok=True)
    for suffix in ("dist-info", "data"):
        folder = tree / f"{old}.{suffix}"
        if folder.is_dir():
            folder.rename(tree / f"{pin.distribution}-{version}.{suffix}")


def _normalise_modes(tree: Path) -> None:
    """The archive records modes; make them depend on the file's kind and not on the builder's umask."""
    for folder, _, names in os.walk(tree):
        os.chmod(folder, 0o755)
        for name in names:
            path = os.path.join(folder, name)
            mode = os.stat(path).st_mode
            wanted = 0o755 if mode & 0o100 else 0o644
            if mode & 0o777 != wanted:
                os.chmod(path, wanted)
