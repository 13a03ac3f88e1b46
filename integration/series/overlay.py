"""Overlay: kernel files that ship inside an upstream wheel, placed there by `kernels/NAME/kernel.toml`.

A kernel exists once, in `kernels/NAME/`. The overlay copies the files that ship to their place in the upstream tree,
so that a patch holds only the lines that call them.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict

from sm120.integration.common.manifest import read_manifest
from sm120.integration.common.refusal import Refusal


class OverlayEntry(BaseModel):
    """One `[[overlay]]` table: `source` in the kernel's folder goes to `target` in the project's wheel tree."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str
    source: str
    target: str


class Budget(BaseModel):
    """One `[[budget]]` table: what a compiled kernel may use; the kernel's codegen test holds it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: str
    threads: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    narrowest_global_access: int | None = None
    warps: int | None = None


class KernelManifest(BaseModel):
    """A `kernel.toml`; what a row of `dtypes` says is free, for its kernel's tests read it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    summary: str
    capabilities: list[tuple[int, int]]
    overlay: list[OverlayEntry] = []
    patches: dict[str, list[str]] = {}
    dtypes: list[dict[str, Any]] = []
    budget: list[Budget] = []


@dataclass(frozen=True)
class OverlayFile:
    """A checked entry."""

    kernel: str
    source: Path
    target: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.read_bytes()).hexdigest()


def load_manifest(folder: Path) -> KernelManifest:
    """Read `folder/kernel.toml`.

    Raises:
        Refusal: `kernel-missing`, `kernel-syntax`, `kernel-field`.
    """
    path = folder / "kernel.toml"
    manifest = read_manifest(path, KernelManifest, "kernel", missing="no such kernel")
    if manifest.name != folder.name:
        raise Refusal("kernel-field", f"name is {manifest.name!r} in the folder {folder.name!r}", path=path)
    return manifest


def load_overlay(kernels: Path, names: list[str], project: str) -> list[OverlayFile]:
    """The files that the kernels `names` place into `project`, in a fixed order.

    Raises:
        Refusal: `overlay-path` when a source or target leaves its folder, `overlay-missing`, `overlay-twice`.
    """
    files: list[OverlayFile] = []
    owners: dict[str, str] = {}
    for name in names:
        folder = kernels / name
        manifest = load_manifest(folder)
        toml = folder / "kernel.toml"
        for entry in manifest.overlay:
            if entry.project != project:
                continue
            for side, value in (("source", entry.source), ("target", entry.target)):
                parts = PurePosixPath(value).parts
                if value.startswith("/") or ".." in parts or not parts or str(PurePosixPath(value)) != value:
                    raise Refusal("overlay-path", f"{side} {value!r} is not a plain path inside the tree", path=toml)
            source = folder / entry.source
            if not source.is_file() or source.is_symlink():
                raise Refusal("overlay-missing", f"source {entry.source!r} is not a regular file", path=toml)
            if entry.target in owners:
                raise Refusal("overlay-twice", f"{entry.target} is placed by {owners[entry.target]} too", path=toml)
            owners[entry.target] = name
            files.append(OverlayFile(name, source, entry.target))
    return files


def place_overlay(tree: Path, files: list[OverlayFile]) -> None:
    """Copy `files` into `tree`.

    Raises:
        Refusal: `overlay-exists` when upstream has a file there, `overlay-path` when the way there is a symlink or
            a file.
    """
    for file in files:
        target = tree / file.target
        toml = file.source.parent / "kernel.toml"
        for parent in list(target.parents)[: len(PurePosixPath(file.target).parts) - 1]:
            if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
                raise Refusal("overlay-path", f"target {file.target!r} goes through {parent.name!r}", path=toml)
        if target.exists() or target.is_symlink():
            raise Refusal("overlay-exists", f"upstream already has {file.target}", path=toml, fix="patch it instead")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, target)
        target.chmod(0o644)
