"""For the runtime's Python: damage stored hybrid pages in every way an operator may meet, restore them, and judge.

    python fault_cases.py FOLDER {short|long}

prints one JSON line per fault and setting: {"fault", "checksum", "tries", "full", "part", "miss", "wrong", "error"}.
full: everything came back equal; part: an equal shorter prefix; miss: nothing; wrong: bytes reported as restored that
differ from those stored; error: an exception left the storage backend. Each fault runs in a forked child.
"""

import ctypes
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from pages import PoolName, kv_pool, state_at, state_pool, storage

PAGES = 4
KEYS = [f"{i:064x}" for i in range(PAGES)]
HALF = 16384  # bytes of K, and of V, of a page
STATE = 12192  # + 96 + 16 = 12,304 bytes, stored as 16,384
NOBODY = 65534


class Session:
    """A server's view: a KV page per key, and a recurrent state after the second and after the last page."""

    def __init__(self, folder: Path, **config: object):
        self.kv, self.states = kv_pool(PAGES, HALF), state_pool(PAGES, STATE)
        self.store = storage(folder, **config)
        self.store.register_mem_pool_host(self.kv)
        self.store.register_mem_host_pool_v2(self.states, PoolName.MAMBA)

    def fill(self) -> None:
        """Contents that depend on the page only, so that every server stores the same bytes under a key."""
        for page in range(PAGES):
            for pool, index in ((self.kv, page * self.kv.page_size), (self.states, page)):
                sample = pool.get_data_page(index)
                generator = torch.Generator().manual_seed(page)
                data = torch.randint(1, 60, (sample.numel(),), generator=generator).to(sample.dtype)
                pool.set_from_flat_data_page(index, data)

    def contents(self) -> list[bytes]:
        kv = [self.kv.get_data_page(page * self.kv.page_size) for page in range(PAGES)]
        return [bytes(t.contiguous().view(torch.uint8).numpy()) for t in (*kv, *map(self.states.get_data_page, (1, 3)))]

    def save(self) -> None:
        """As the controller does: recurrent states first, then the KV pages."""
        self.store.batch_set_v2([state_at(KEYS[1], 1)])
        self.store.batch_set_v2([state_at(KEYS[3], 3)])
        self.store.batch_set_v1(KEYS, torch.arange(PAGES * self.kv.page_size))

    def restore(self) -> int:
        """As the controller does: query, KV, then the state after the last page; returns the usable pages."""
        wanted = state_at(KEYS[-1], 0)
        pages = self.store.batch_exists_v2(KEYS, [wanted]).kv_hit_pages
        if not pages:
            return 0
        got = self.store.batch_get_v1(KEYS[:pages], torch.arange(pages * self.kv.page_size))
        if not all(got):
            return 0  # the state belongs to the end of the prefix: without all of it there is no use for it
        return pages if self.store.batch_get_v2([state_at(KEYS[pages - 1], pages - 1)])[PoolName.MAMBA][0] else 0


def judge(folder: Path, expected: list[bytes], **config: object) -> str:
    """Restore in a fresh server and compare."""
    session = Session(folder, **config)
    try:
        pages = session.restore()
    except Exception:
        return "error"
    finally:
        session.store.close()
    found = session.contents()
    state = {2: 4, 4: 5}.get(pages)
    if pages and (state is None or found[:pages] != expected[:pages] or found[state] != expected[state]):
        return "wrong"
    return {0: "miss", PAGES: "full"}.get(pages, "part")


class Fault:
    """Stored pages to damage; `tries` counts outcomes."""

    def __init__(self, folder: Path, checksum: bool, long: bool):
        self.folder, self.config, self.long = folder, {"page_checksum": checksum}, long
        self.saved, self.work = folder / "saved", folder / "work"
        session = Session(self.saved, **self.config)
        session.fill()
        self.expected = session.contents()
        session.save()
        session.store.close()
        self.outcomes: Counter[str] = Counter()
        self.files = sorted(path.relative_to(self.saved) for path in self.saved.glob("??/*"))
        assert len(self.files) == 10, self.files

    def empty(self) -> None:
        """Remove every stored and temporary file, and keep the folders, of which there are hundreds."""
        shutil.rmtree(self.work / ".staging", ignore_errors=True)
        for path in self.work.glob("??/*"):
            path.unlink()

    def fresh(self) -> dict[str, Path]:
        """Undamaged copy of the stored pages, by readable name: k0 … k3, v0 … v3, state1, state3."""
        self.empty()
        names = {}
        for file in self.files:
            (self.work / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.saved / file, self.work / file)  # with its extended attributes
            page = KEYS.index(file.name[:64])
            names[("state" if "mamba" in file.name else file.name[-1]) + str(page)] = self.work / file
        return names

    def count(self) -> None:
        self.outcomes[judge(self.work, self.expected, **self.config)] += 1


def truncation(fault: Fault) -> None:
    for name, size in itertools.product(("k2", "v0", "state1", "state3"), range(0, HALF + 2 * 4096, 4096)):
        if size != HALF:
            os.truncate(fault.fresh()[name], size)
            fault.count()


def bit_flip(fault: Fault) -> None:
    # The last bytes of a state's file are padding that no one reads: a flip there is no fault.
    draw = random.Random(1)
    for _ in range(200 if fault.long else 24):
        name, bit = draw.choice(("k0", "k3", "v1", "state3")), draw.randrange(8)
        offset = draw.randrange(STATE + 112 if name == "state3" else HALF)
        path = fault.fresh()[name]
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1 << bit]))
        fault.count()


def missing_file(fault: Fault) -> None:
    names = list(fault.fresh())
    for lost in [{name} for name in names] + [{"state1", "state3"}]:
        files = fault.fresh()
        for name in lost:
            files[name].unlink()
        fault.count()


def swapped_files(fault: Fault) -> None:
    pairs = list(itertools.combinations(fault.fresh(), 2))
    for one, other in pairs if fault.long else random.Random(2).sample(pairs, 12):
        files = fault.fresh()
        aside = fault.work / "aside"
        files[one].rename(aside)
        files[other].rename(files[one])
        aside.rename(files[other])
        fault.count()


def full_file_system(fault: Fault) -> None:
    """Every size from none to enough, so that the disk is full at every point of the write-back."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace, user = 0x00020000, 0x10000000
    if libc.unshare(namespace if os.geteuid() == 0 else namespace | user):
        raise RuntimeError(f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}")
    libc.mount(None, b"/", None, 0x4000 | 0x40000, None)
    for blocks in range(4, 48, 1 if fault.long else 4):
        fault.work.mkdir(exist_ok=True)
        if libc.mount(b"tmpfs", os.fsencode(fault.work), b"tmpfs", 0, f"size={blocks * 4096},nr_inodes=1000".encode()):
            raise RuntimeError(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
        session = Session(fault.work, **fault.config)
        session.fill()
        session.save()
        session.store.close()
        fault.count()
        libc.umount(os.fsencode(fault.work))


def permission_loss(fault: Fault) -> None:
    for name, mode in itertools.product(("k0", "v2", "state1", "state3"), (0o000, 0o200, 0o400)):
        files = fault.fresh()
        if os.geteuid() == 0:
            for path in (fault.work, *fault.work.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        files[name].chmod(mode)
        fault.outcomes[judge_unprivileged(fault)] += 1


def judge_unprivileged(fault: Fault) -> str:
    """Judge in a child that has no power over permissions."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(fault.work)  # the folders above need not be open to everyone
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(write_end, judge(Path("."), fault.expected, **fault.config).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    outcome = os.read(read_end, 100).decode() or "error"
    os.close(read_end)
    return outcome


def forked_writer(fault: Fault) -> int:
    """A server that stores the pages over and over until it is killed."""
    child = os.fork()
    if child == 0:
        try:
            session = Session(fault.work, **fault.config)
            session.fill()
            while True:
                session.save()
        finally:
            os._exit(1)
    return child


def kill_during_write(fault: Fault) -> None:
    draw = random.Random(3)
    for _ in range(60 if fault.long else 8):
        fault.empty()
        child = forked_writer(fault)
        deadline = time.monotonic() + 30
        while not any(fault.work.glob(".staging/*/*")) and not any(fault.work.glob("??/*")):
            assert time.monotonic() < deadline, "the writer made no progress"
            time.sleep(0.0005)
        time.sleep(draw.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        fault.count()


def two_servers(fault: Fault) -> None:
    """Two servers replace the same pages while others restore them."""
    fault.fresh()
    writers = [forked_writer(fault), forked_writer(fault)]
    time.sleep(0.5)
    try:
        for _ in range(200 if fault.long else 20):
            fault.count()
    finally:
        for writer in writers:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)


FAULTS = (
    truncation,
    bit_flip,
    missing_file,
    swapped_files,
    full_file_system,
    permission_loss,
    kill_during_write,
    two_servers,
)


def run(function: Callable[[Fault], None], folder: Path, checksum: bool, long: bool) -> dict[str, object]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        answer: dict[str, object] = {}
        try:
            fault = Fault(folder, checksum, long)
            function(fault)
            answer = {"tries": sum(fault.outcomes.values()), **fault.outcomes}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            os.write(write_end, json.dumps(answer).encode())
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    answer = json.loads(os.read(read_end, 1 << 16) or b'{"failed": "the process died"}')
    os.close(read_end)
    shutil.rmtree(folder, ignore_errors=True)
    return {"fault": function.__name__.replace("_", "-"), "checksum": checksum, **answer}


def rows(folder: Path, long: bool) -> Iterator[dict[str, object]]:
    for function in FAULTS:
        for checksum in (False, True):
            yield run(function, folder / f"{function.__name__}-{checksum}", checksum, long)


if __name__ == "__main__":
    torch.set_num_threads(1)  # torch's threads do not survive a fork
    for row in rows(Path(sys.argv[1]).absolute(), sys.argv[2] == "long"):
        print(json.dumps(row), flush=True)
