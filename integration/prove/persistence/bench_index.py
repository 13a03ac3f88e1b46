"""For the runtime's Python: what a folder of many pages costs the server, and the process that looks after it.

    python bench_index.py FOLDER FILES

prints one JSON line. Files are sparse, 4 KiB each, two a page, named and placed as storage does; nothing is read. The
longest pause is that of a thread which wants to run every millisecond, less that millisecond; `idle_pause` is the same
before anything else runs, which is what the machine adds.
"""

import hashlib
import json
import os
import random
import resource
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pages import kv_pool, storage
from sglang.srt.mem_cache.storage.nixl.nixl_cleaner import HiCacheL3Cleaner
from sglang.srt.mem_cache.storage.nixl.nixl_index_process import NixlPageIndexProcess
from sglang.srt.mem_cache.storage.nixl.nixl_utils import NixlBackendConfig

PAGE = 2 * 4096
NEVER = {"l3_cleaner_high_watermark": 101.0, "l3_cleaner_low_watermark": 100.0}


class Pauses:
    """The longest time for which this process did not let a waiting thread run, in ms."""

    def __enter__(self) -> "Pauses":
        self.longest, self._running = 0.0, True
        self._thread = threading.Thread(target=self._tick)
        self._thread.start()
        return self

    def _tick(self) -> None:
        while self._running:
            before = time.perf_counter()
            time.sleep(0.001)
            self.longest = max(self.longest, (time.perf_counter() - before) * 1e3 - 1)

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._thread.join()


def make(store, keys: list[str]) -> float:
    started = time.perf_counter()
    for key in keys:
        for suffix in ("_k", "_v"):
            path = store.file_manager.get_file_path(store._get_suffixed_key(key) + suffix)
            file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
            os.ftruncate(file, 4096)
            os.close(file)
    return time.perf_counter() - started


def exists(store, keys: list[str]) -> float:
    """Median microseconds of CPU for a page, of 100 queries for 128 pages drawn at random."""
    draw, times = random.Random(0), []
    for _ in range(100):
        batch = draw.sample(keys, 128)
        started = time.thread_time()
        found = store.batch_exists(batch)
        times.append((time.thread_time() - started) / 128 * 1e6)
        if found != 128:
            raise RuntimeError(f"{found} of 128 pages are there")
    return statistics.median(times)


def indexed(folder: Path) -> tuple[int, int]:
    """Files and bytes in the index, as far as it has got."""
    try:
        database = sqlite3.connect(f"file:{folder}/.index/pages.sqlite3?mode=ro", uri=True, timeout=60)
        return database.execute("SELECT files, bytes FROM total").fetchone()
    except sqlite3.Error:
        return 0, 0


def looked_after(folder: Path, done: Callable[[int, int], bool], **limits: object) -> dict[str, float]:
    """Start the index's process and wait until `done`: seconds, longest pause here, peak MiB there."""
    options = NixlBackendConfig({**NEVER, **limits}).get_page_index_options([str(folder)])
    with Pauses() as pauses:
        started = time.perf_counter()
        index = NixlPageIndexProcess(options)
        index.start()
        while not done(*indexed(folder)):
            time.sleep(0.02)
            if time.perf_counter() - started > 1800:
                raise RuntimeError(f"still {indexed(folder)} after half an hour")
        seconds = time.perf_counter() - started
    status = Path(f"/proc/{index._child.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    index.stop()
    return {"seconds": seconds, "pause": pauses.longest, "mib": peak}


def scanned(folder: Path) -> dict[str, float]:
    """The cleaner without an index, as the release has it: one look at everything, one batch deleted."""
    cleaner = HiCacheL3Cleaner(str(folder), 0, high_watermark=50.0, low_watermark=40.0)
    percents = iter([100.0])
    cleaner._disk_usage_pct = lambda _: next(percents, 0.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work = threading.Thread(target=cleaner._tick)
    with Pauses() as pauses:
        started = time.perf_counter()
        work.start()
        work.join()
        seconds = time.perf_counter() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "pause": pauses.longest, "mib": grown}


def main(folder: Path, files: int) -> None:
    store = storage(folder)
    store.register_mem_pool_host(kv_pool(1, 4096))
    if not store.is_zero_copy:
        raise RuntimeError("the pool is not aligned: pages would be one file each")
    keys = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(files // 2)]
    made = make(store, keys)
    with Pauses() as idle:
        time.sleep(2)
    asked = exists(store, keys)
    built = looked_after(folder, lambda count, _: count == files)
    size = os.stat(folder / ".index" / "pages.sqlite3").st_size
    limit = len(keys) * PAGE // 10 * 9
    evicted = looked_after(folder, lambda _, held: 0 < held <= limit, l3_cleaner_max_bytes=limit)
    left = sum(len(names) for bucket in folder.glob("[0-9a-f][0-9a-f]") for _, _, names in os.walk(bucket))
    if left != limit // PAGE * 2:
        raise RuntimeError(f"{left} files are left of {files}, not {limit // PAGE * 2}")
    line = {"files": files, "made": made, "exists": asked, "idle_pause": idle.longest, "index_bytes": size}
    print(json.dumps({**line, "built": built, "evicted": evicted, "scanned": scanned(folder)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
