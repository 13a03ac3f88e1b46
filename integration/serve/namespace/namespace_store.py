"""Namespaces on disk: a manifest written once, a `pages` folder for the server, and the care for old ones."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120.integration.build.identity import digest
from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace.namespace_identity import SCHEMA, differences, directory_name

MANIFEST = "namespace.json"
PAGES = "pages"
_STAGING = ".staging"  # where a running server holds a lock per process
_DOOMED = ".deleting-"


@dataclass(frozen=True)
class Namespace:
    folder: Path
    label: str
    identity: dict[str, Any]
    last_used: float

    @property
    def pages(self) -> Path:
        """What goes into SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR."""
        return self.folder / PAGES

    @property
    def active(self) -> bool:
        """Whether a process holds the namespace or a server has its staging folder locked."""
        return _is_locked(self.folder / MANIFEST) or any(map(_is_locked, (self.pages / _STAGING).glob("*")))

    def usage(self) -> tuple[int, int]:
        """Files and allocated bytes below the namespace."""
        files = used = 0
        for parent, _, names in os.walk(self.folder):
            for name in names:
                try:
                    used += os.lstat(os.path.join(parent, name)).st_blocks * 512
                    files += 1
                except FileNotFoundError:
                    continue
        return files, used


def open_namespace(root: Path, label: str, identity: dict[str, Any]) -> Namespace:
    """Create the namespace of `identity` below `root`, or check that the one that is there is it.

    One that was made under another label is it, too.

    Raises:
        Refusal: `namespace-manifest` when the folder exists with an unreadable manifest, none, or another identity.
    """
    folder = _of_any_label(root, identity) or root / directory_name(label, identity)
    created = not folder.exists()
    if created:
        _create(folder, label, identity)
    found = read_namespace(folder)
    if found.identity != identity:
        name, one, other = differences(found.identity, identity)[0]
        raise Refusal(
            "namespace-manifest",
            f"belongs to another identity: {name} is {one!r} there and {other!r} here",
            path=folder / MANIFEST,
            fix="remove the folder or choose another root",
        )
    found.pages.mkdir(exist_ok=True)
    os.utime(folder / MANIFEST)
    return found


def _of_any_label(root: Path, identity: dict[str, Any]) -> Path | None:
    """The namespace of `identity` under whatever label it was made: a name stores nothing twice."""
    for folder in sorted(root.glob(f"*_{digest(identity)[:12]}")):
        try:
            if read_namespace(folder).identity == identity:
                return folder
        except Refusal:
            continue  # the caller meets it, if it is where its own would be
    return None


def _create(folder: Path, label: str, identity: dict[str, Any]) -> None:
    """Write the manifest aside and move the whole folder into place: it exists with its manifest or not at all."""
    aside = folder.with_name(f".creating-{uuid.uuid4().hex}")
    (aside / PAGES).mkdir(parents=True)
    text = json.dumps({"sha256": digest(identity), "label": label, "identity": identity}, indent=1, sort_keys=True)
    with os.fdopen(os.open(aside / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.rename(aside, folder)  # refused when another process was first: its folder is not empty
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not folder.exists():
            raise
        return
    for path in (folder, folder.parent):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def read_namespace(folder: Path) -> Namespace:
    """Read and check a manifest.

    Raises:
        Refusal: `namespace-manifest` when it is missing, unreadable, of another schema, or does not match its hash.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text())
        identity, recorded, label = data["identity"], data["sha256"], data["label"]
        last_used = path.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal("namespace-manifest", f"no readable manifest: {error!r}", path=path) from error
    if not isinstance(identity, dict) or identity.get("schema") != SCHEMA:
        raise Refusal("namespace-manifest", f"not a manifest of schema {SCHEMA}", path=path)
    if digest(identity) != recorded or folder.name != directory_name(label, identity):
        raise Refusal("namespace-manifest", "the identity does not have the recorded hash and name", path=path)
    return Namespace(folder, label, identity, last_used)


def namespaces(root: Path) -> tuple[list[Namespace], list[Refusal]]:
    """Every namespace below `root`, most recently used first, and why other folders are none.

    Raises:
        Refusal: `namespace-root` when there is no such folder.
    """
    if not root.is_dir():
        raise Refusal("namespace-root", "no such folder", path=root, fix="name the folder that holds the namespaces")
    found, refused = [], []
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            try:
                found.append(read_namespace(folder))
            except Refusal as refusal:
                refused.append(refusal)
    return sorted(found, key=lambda namespace: -namespace.last_used), refused


def collect(root: Path, keep: int, *, delete: bool) -> list[tuple[Namespace, str]]:
    """Decide what to do with every namespace: keep the `keep` last used of each label and every active one.

    With `delete` the others are removed; without, nothing changes. Folders that are no namespace are never touched.
    Returns (namespace, "kept" | "active" | "would delete" | "deleted").
    """
    if keep < 1:
        raise Refusal("namespace-gc", f"keep is {keep}, must be at least 1")
    seen: dict[str, int] = {}
    verdicts = []
    for namespace in namespaces(root)[0]:
        seen[namespace.label] = seen.get(namespace.label, 0) + 1
        if seen[namespace.label] <= keep:
            verdict = "kept"
        elif namespace.active:
            verdict = "active"
        elif not delete:
            verdict = "would delete"
        else:
            verdict = "deleted" if _delete(namespace) else "active"
        verdicts.append((namespace, verdict))
    if delete:
        for left in root.glob(f"{_DOOMED}*"):  # of an interrupted run
            shutil.rmtree(left, ignore_errors=True)
    return verdicts


def _delete(namespace: Namespace) -> bool:
    try:
        with hold(namespace, exclusive=True):
            if any(map(_is_locked, (namespace.pages / _STAGING).glob("*"))):
                return False
            doomed = namespace.folder.with_name(f"{_DOOMED}{uuid.uuid4().hex}")
            os.rename(namespace.folder, doomed)  # from here on it is not found any more
            shutil.rmtree(doomed)
    except Refusal:
        return False
    return True


@contextmanager
def hold(namespace: Namespace, *, exclusive: bool = False) -> Iterator[None]:
    """Keep a namespace from being collected while a server uses it; `exclusive` is for the collection itself.

    Raises:
        Refusal: `namespace-busy` when it is held in a way that excludes this one.
    """
    fd = os.open(namespace.folder / MANIFEST, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refusal("namespace-busy", "held by another process", path=namespace.folder) from error
        yield
    finally:
        os.close(fd)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def age(seconds: float) -> str:
    """`seconds` since the epoch as a readable distance from now."""
    passed = max(0.0, time.time() - seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{passed / size:.0f} {unit}"
    return f"{passed:.0f} s"
