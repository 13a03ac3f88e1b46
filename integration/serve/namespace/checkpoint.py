"""The content of a checkpoint as hashes, so that a copy elsewhere is the same and a changed byte is not."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel

from sm120.integration.common.refusal import Refusal

CHUNK = 8 << 20
HEADER_MAX = 128 << 20
# What decides, beside the weights, how a checkpoint is computed. Tokenizers are not here: pages are found by token ids.
SETTINGS = ("config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json")


class Shard(BaseModel):
    size: int
    header: str
    content: str


class Checkpoint(BaseModel):
    """sha256 of every file that decides the weights, by name relative to the checkpoint."""

    settings: dict[str, str]
    shards: dict[str, Shard]


class HashCache:
    """Content hashes of whole files, remembered across interrupted runs; keyed by what changes when a file does."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._known = self._read()

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    @staticmethod
    def _key(file: Path) -> str:
        stat = file.stat()
        return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"

    def get(self, file: Path) -> str | None:
        return self._known.get(self._key(file))

    def put(self, file: Path, key: str, content: str) -> None:
        """Remember `content` unless the file changed since `key` was taken."""
        if self._key(file) != key:
            raise Refusal("namespace-checkpoint", "changed while it was read", path=file, fix="wait for the download")
        with self._lock:
            self._known[key] = content
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Other processes hash other checkpoints of this root at the same time: what they found stays known.
            self._known = {**self._read(), **self._known}
            aside = self.path.with_suffix(f".{uuid.uuid4().hex}.tmp")
            try:
                aside.write_text(json.dumps(self._known))
                os.replace(aside, self.path)
            finally:
                aside.unlink(missing_ok=True)


def read_checkpoint(
    folder: Path,
    cache: HashCache,
    *,
    workers: int = 4,
    trust_download: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Checkpoint:
    """Hash a Hugging Face checkpoint folder; `progress` gets the bytes settled so far and their total.

    The content hash of a shard is taken from the hub's download record when that is at least as new as the file
    (`trust_download`), from `cache` when an earlier run read the same file, and is computed otherwise. All three give
    the same value.

    Raises:
        Refusal: `namespace-checkpoint` for a folder without config.json or shards, a missing shard of the index, or a
            file that is no safetensors file or changes meanwhile.
    """
    if not (folder / "config.json").is_file():
        raise Refusal("namespace-checkpoint", "no config.json there", path=folder, fix="name the model's folder")
    files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
    if not files:
        raise Refusal("namespace-checkpoint", "no *.safetensors there", path=folder)
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    for index in indexes:
        try:
            listed = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise Refusal("namespace-checkpoint", f"not a shard index: {error!r}", path=index) from error
        missing = sorted(listed - {file.name for file in files})
        if missing:
            raise Refusal("namespace-checkpoint", f"lists {missing[0]}, which is not there", path=index)
    settings = [path for name in SETTINGS if (path := folder / name).is_file()] + indexes
    total, done, lock = sum(file.stat().st_size for file in files), 0, threading.Lock()

    def advance(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, total)

    def shard(file: Path) -> Shard:
        size = file.stat().st_size
        content = (downloaded_hash(file) if trust_download else None) or cache.get(file)
        if content is None:
            key = HashCache._key(file)
            content = sha256_file(file, advance)
            cache.put(file, key, content)
        else:
            advance(size)
        return Shard(size=size, header=header_hash(file), content=content)

    with ThreadPoolExecutor(workers) as pool:
        shards = dict(zip((file.name for file in files), pool.map(shard, files), strict=True))
    return Checkpoint(settings={path.name: sha256_file(path) for path in settings}, shards=shards)


def sha256_file(file: Path, advance: Callable[[int], None] = lambda count: None) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(CHUNK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def header_hash(file: Path) -> str:
    """sha256 of the length field and the JSON header of a safetensors file."""
    with file.open("rb") as handle:
        prefix = handle.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or not 2 <= length <= HEADER_MAX:
            raise Refusal("namespace-checkpoint", f"not a safetensors file: header length {length}", path=file)
        header = handle.read(length)
        if len(header) != length or not header.startswith(b"{"):
            raise Refusal("namespace-checkpoint", "not a safetensors file: the header is cut short", path=file)
    return hashlib.sha256(prefix + header).hexdigest()


def downloaded_hash(file: Path) -> str | None:
    """The content hash the hub's client recorded, or None where there is no record that is as new as the file."""
    target = file.resolve()
    if target.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", target.name):
        return target.name  # the hub's cache names large files by their content
    record = file.parent / ".cache" / "huggingface" / "download" / f"{file.name}.metadata"
    try:
        revision, etag, timestamp = record.read_text().split()[:3]
        fresh = file.stat().st_mtime - 1 <= float(timestamp)
    except (OSError, ValueError):
        return None
    return etag if fresh and re.fullmatch(r"[0-9a-f]{64}", etag) and re.fullmatch(r"[0-9a-f]{40}", revision) else None
