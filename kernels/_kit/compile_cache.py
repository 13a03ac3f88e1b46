"""What a compiler made of the same bytes with the same flags before: tests compile the same sources every time they run.

The cache lies in `build/compiled` of a checkout; an installed package has none and compiles. Deleting it loses time only.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT_SECONDS = 30 * 24 * 3600
CHANGES_CODE = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
)


def compile_once(
    command: Sequence[str],
    reads: Sequence[Path],
    out: Path,
    run: Callable[[list[str]], None],
    *,
    scratch: Path | None = None,
) -> None:
    """`run([*command, "-o", out])`, or a copy of what that gave before.

    `reads` are the files and folders whose contents decide, `command` names them; `scratch` is a folder in their paths
    that has another name each time. A `run` that raises leaves nothing behind.
    """
    if not (ROOT / "build").is_dir() or not (ROOT / "patches").is_dir():
        run([*command, "-o", str(out)])
        return
    kept = ROOT / "build" / "compiled" / (_key(command, reads, scratch) + out.suffix)
    if kept.is_file():
        shutil.copyfile(kept, out)
        os.utime(kept)
        return
    run([*command, "-o", str(out)])
    kept.parent.mkdir(exist_ok=True)
    _forget_old(kept.parent)
    handle, aside = tempfile.mkstemp(dir=kept.parent)
    os.close(handle)
    shutil.copyfile(out, aside)
    os.replace(aside, kept)  # whole or not at all: another worker may read it


def _key(command: Sequence[str], reads: Sequence[Path], scratch: Path | None) -> str:
    hashed = hashlib.sha256()
    unnamed = (lambda text: text.replace(str(scratch), "")) if scratch else str
    words = [_version(command[0]), *command, *(f"{name}={os.environ.get(name)}" for name in CHANGES_CODE)]
    for word in words:
        hashed.update(unnamed(word).encode() + b"\0")
    for read in reads:
        for path in sorted(read.rglob("*")) if read.is_dir() else [read]:
            if path.is_file() and path.suffix not in (".py", ".pyc", ".md"):
                hashed.update(unnamed(str(path)).encode() + b"\0" + _content(path))
    return hashed.hexdigest()[:40]


def _content(path: Path) -> bytes:
    status = path.stat()
    if status.st_size > 256 * 1024 or "site-packages" in path.parts or path.is_relative_to("/usr"):
        return f"{status.st_size} {status.st_mtime_ns}".encode()  # an installed package's: thousands of files
    return hashlib.sha256(path.read_bytes()).digest()


@functools.cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60).stdout


def _forget_old(folder: Path) -> None:
    for path in folder.iterdir():
        try:
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
        except FileNotFoundError:
            pass  # another worker was first
