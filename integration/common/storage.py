"""What the storage folder and the kernel can do, asked by doing it once."""

import ctypes
import errno
import json
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

_SYS_IO_URING_SETUP = 425
_BLOCK = 4096


@dataclass(frozen=True)
class Storage:
    """NIXL's POSIX plugin on one folder: which asynchronous interface, and whether files are opened with O_DIRECT."""

    folder: Path
    io_uring: bool
    direct: bool

    def __str__(self) -> str:
        interface = "io_uring" if self.io_uring else "libaio (the kernel refuses io_uring)"
        return f"NIXL POSIX, {interface}, {'O_DIRECT' if self.direct else 'buffered (no O_DIRECT on this filesystem)'}"

    def environment(self) -> dict[str, str]:
        return {
            "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": str(self.folder),
            "SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "POSIX",
        }

    def extra_config(self) -> str:
        """The value of --hicache-storage-backend-extra-config."""
        interface = {"use_uring": "true"} if self.io_uring else {"use_aio": "true"}
        return json.dumps(
            {
                **interface,
                "use_direct_io": self.direct,
                # Upstream leaves hits of less than 256 tokens in storage; our prompts are shorter.
                "prefetch_threshold": 1,
                # On a disk that is 80 % full for other reasons the cleaner would delete every page between two rows.
                "l3_cleaner_enabled": False,
            }
        )

    def files(self) -> dict[Path, int]:
        """Every file of the storage and its size."""
        return {path: path.stat().st_size for path in self.folder.rglob("*") if path.is_file()}


def probe(folder: Path) -> Storage:
    """Find out what `folder`, created if need be, can do."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return Storage(folder, io_uring=has_io_uring(), direct=_has_direct_io(folder))


def has_io_uring() -> bool:
    """Whether the kernel lets this process set up a ring."""
    parameters = ctypes.create_string_buffer(256)
    ring = ctypes.CDLL(None, use_errno=True).syscall(_SYS_IO_URING_SETUP, 1, parameters)
    if ring < 0:
        return False
    os.close(ring)
    return True


def _has_direct_io(folder: Path) -> bool:
    path = folder / f".direct-{os.getpid()}"
    # An anonymous map starts on a page, as O_DIRECT wants.
    with mmap.mmap(-1, _BLOCK) as block:
        try:
            file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        try:
            return os.write(file, block) == _BLOCK
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        finally:
            os.close(file)
            path.unlink(missing_ok=True)
