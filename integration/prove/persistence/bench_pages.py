"""For the runtime's Python: time upstream's NIXL storage on batches of pages of one size, beside fio on the same disk.

    python bench_pages.py FOLDER PAGE_BYTES PAGES ROUNDS

prints one JSON line per variant: {"variant", "write": [seconds], "read": [seconds], "bytes", "staging", "peak"}, where
staging is the size of its bounce buffers and peak the largest resident memory of the process. Every write makes new
files, as a server does; variants and fio take turns in random order, so that a slow moment does not meet only one.
"""

import json
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from pages import PoolName, kv_pool, state_pool, storage
from sglang.srt.mem_cache.hicache_storage import PoolTransfer
from sglang.srt.mem_cache.storage.nixl import hicache_nixl

PARTS = 4


def timed(call, expected: list[bool]) -> float:
    started = time.perf_counter()
    results = call()
    seconds = time.perf_counter() - started
    if results != expected:
        raise RuntimeError(f"{results.count(False)} of {len(results)} pages failed")
    return seconds


class Variant:
    """One way of storing `pages` pages of `page_bytes` bytes.

    `kind` is zero-copy, bounce, padded (16 bytes more than a whole number of blocks), or split (bounce buffers that hold
    a PARTS-th of the batch).
    """

    def __init__(self, folder: Path, kind: str, page_bytes: int, pages: int, **config: object):
        self.store = storage(folder, **config)
        self.keys = [f"{i:064x}" for i in range(pages)]
        if kind == "zero-copy":
            # K and V are a file each: half as many pages make as many files of that size.
            self.pool = kv_pool(pages // 2, page_bytes)
            self.keys = self.keys[: pages // 2]
            self.store.register_mem_pool_host(self.pool)
            if not self.store.is_zero_copy:
                raise RuntimeError("the pool is not aligned: this would not be zero-copy")
        else:
            # 96 B of window and 16 B of side state make the page odd; the temporal part makes up the rest.
            self.pool = state_pool(pages, page_bytes - 112 + (16 if kind == "padded" else 0))
            limit = hicache_nixl._BOUNCE_BYTES_MAX
            if kind == "split":
                hicache_nixl._BOUNCE_BYTES_MAX = page_bytes * (pages // PARTS)
            self.store.register_mem_host_pool_v2(self.pool, PoolName.MAMBA)
            hicache_nixl._BOUNCE_BYTES_MAX = limit
        self.kind, self.folder = kind, folder
        self.expected = [True] * len(self.keys)
        for buffer in self.pool.kv_buffer if isinstance(self.pool.kv_buffer, list) else [self.pool.kv_buffer]:
            buffer.view(torch.uint8).random_(0, 60)

    def write(self) -> float:
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            path.unlink()
        if self.kind == "zero-copy":
            return timed(lambda: self.store.batch_set_v1(self.keys, self.indices()), self.expected)
        return timed(lambda: self.store.batch_set_v2([self.transfer()])[PoolName.MAMBA], self.expected)

    def read(self) -> float:
        if self.kind == "zero-copy":
            return timed(lambda: self.store.batch_get_v1(self.keys, self.indices()), self.expected)
        return timed(lambda: self.store.batch_get_v2([self.transfer()])[PoolName.MAMBA], self.expected)

    def indices(self) -> torch.Tensor:
        return torch.arange(len(self.keys) * self.pool.page_size)

    def transfer(self) -> PoolTransfer:
        return PoolTransfer(PoolName.MAMBA, torch.arange(len(self.keys)), keys=self.keys)


VARIANTS = {
    "zero-copy": ("zero-copy", {}),
    "zero-copy, fsync": ("zero-copy", {"fsync_writes": True}),
    "zero-copy, checksum": ("zero-copy", {"page_checksum": True}),
    "bounce": ("bounce", {}),
    "bounce, padded": ("padded", {}),
    f"bounce, in {PARTS} parts": ("split", {}),
}


class Fio:
    """The same files written and read by fio: O_DIRECT, io_uring, one block per page, all of a batch in flight."""

    def __init__(self, folder: Path, page_bytes: int, pages: int):
        self.folder, self.page_bytes, self.pages = folder, page_bytes, pages

    def run(self, direction: str) -> float:
        command = [
            "fio",
            "--name=pages",
            f"--directory={self.folder}",
            f"--rw={direction}",
            f"--bs={self.page_bytes}",
            f"--filesize={self.page_bytes}",
            f"--nrfiles={self.pages}",
            f"--iodepth={min(self.pages, 128)}",
            "--ioengine=io_uring",
            "--direct=1",
            "--fallocate=none",
            "--create_on_open=1",
            "--output-format=json",
        ]
        report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["jobs"][0]
        if report[direction]["io_bytes"] != self.page_bytes * self.pages:
            raise RuntimeError(f"fio moved {report[direction]['io_bytes']} bytes")
        return report[direction]["runtime"] / 1000 or 0.001

    def write(self) -> float:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self.run("write")

    def read(self) -> float:
        return self.run("read")


def main(folder: Path, page_bytes: int, pages: int, rounds: int, fio: int) -> None:
    made: dict[str, Variant | Fio] = {"fio": Fio(folder / "fio", page_bytes, pages)} if fio else {}
    for number, (name, (kind, config)) in enumerate(VARIANTS.items()):
        made[name] = Variant(folder / str(number), kind, page_bytes, pages, **config)
    seconds: dict[str, dict[str, list[float]]] = {name: {"write": [], "read": []} for name in made}
    draw = random.Random(0)
    for round_number in range(rounds + 1):
        for name in draw.sample(list(made), len(made)):
            for direction in ("write", "read"):
                took = getattr(made[name], direction)()
                if round_number:  # the first one warms up
                    seconds[name][direction].append(took)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for name, row in seconds.items():
        pools = getattr(getattr(made[name], "store", None), "_hybrid_pool_ctx", {}).values()
        staging = sum(2 * pool.bounce_set.nbytes for pool in pools if not pool.is_zero_copy)
        about = {"variant": name, "bytes": page_bytes * pages, "staging": staging, "peak": peak}
        print(json.dumps({**about, **row}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the backup thread of a server copies pages alone, too
    main(Path(sys.argv[1]).absolute(), *map(int, sys.argv[2:6]))
