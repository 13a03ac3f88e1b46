"""The conformance cases, run inside the Python that owns the NIXL under test. Imports nothing of this project.

    python cases.py FOLDER QUEUE[,QUEUE] CASE[,CASE] TIMEOUT

prints one JSON line per case and queue: {"queue", "case", "result": "pass" | "fail" | "not run", "detail"}.
Every case runs in a forked child with a time limit, so that a hang or a crash is a result like any other.
"""

import contextlib
import ctypes
import json
import mmap
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
CASES: dict[str, Callable[["Bench"], None]] = {}
FAILED = "ERR"
# What a case does to memory it must not touch shows only in some runs.
REPEATS = {"release-in-flight": 8}


class NotRun(Exception):
    """This machine cannot stage the case; the message says why."""


def case(function: Callable[["Bench"], None]) -> Callable[["Bench"], None]:
    CASES[function.__name__.replace("_", "-")] = function
    return function


class Bench:
    """One agent with the POSIX backend on one queue, and files under a folder of its own."""

    def __init__(self, folder: Path, queue: str, **params: str):
        from nixl._api import nixl_agent, nixl_agent_config

        self.folder, self.queue = folder, queue
        self.agent = nixl_agent("check", nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX", {f"use_{queue}": "true", **params})
        self.next_id = 1000  # clear of descriptors, which are device ids, too
        self.kept: list[object] = []

    def memory(self, size: int, byte: int | None = None) -> tuple[mmap.mmap, int]:
        """Page-aligned, registered host memory and its address; filled with `byte` unless that is None."""
        memory = mmap.mmap(-1, size)
        if byte is not None:
            for offset in range(0, size, MIB):
                memory[offset : min(offset + MIB, size)] = bytes([byte]) * (min(offset + MIB, size) - offset)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.kept += [memory, self.agent.register_memory(self.agent.get_reg_descs([(address, size, 0, "")], "DRAM"))]
        return memory, address

    def files(self, paths: list[Path], size: int, flags: str):
        """Register files by path; returns the registration and its transfer descriptors."""
        base, self.next_id = self.next_id, self.next_id + len(paths)
        rows = [(0, size, base + i, f"{flags}:{path}") for i, path in enumerate(paths)]
        registered = self.agent.register_memory(self.agent.get_reg_descs(rows, "FILE"))
        return registered, registered.trim()

    def open_files(self, fds: list[int], sizes: list[int]):
        rows = [(0, size, fd, "") for fd, size in zip(fds, sizes, strict=True)]
        registered = self.agent.register_memory(self.agent.get_reg_descs(rows, "FILE"))
        self.kept.append(registered)
        return self.agent.get_xfer_descs([(0, size, fd) for fd, size in zip(fds, sizes, strict=True)], "FILE")

    def start(self, direction: str, address: int, sizes: list[int], file_descs):
        """Post a transfer of consecutive pieces of memory; returns its handle."""
        rows, offset = [], 0
        for size in sizes:
            rows.append((address + offset, size, 0))
            offset += size
        handle = self.agent.initialize_xfer(direction, self.agent.get_xfer_descs(rows, "DRAM"), file_descs, "check")
        self.state_of(lambda: self.agent.transfer(handle))
        return handle

    @staticmethod
    def state_of(call: Callable[[], str]) -> str:
        """State of a request; NIXL reports a failed one by raising."""
        try:
            return call()
        except Exception:
            return FAILED

    @staticmethod
    def attempt(call: Callable[[Any], None], argument: Any) -> None:
        """Call what NIXL may refuse; that it does is no failure."""
        with contextlib.suppress(Exception):
            call(argument)

    def poll(self, handle) -> str:
        return self.state_of(lambda: self.agent.check_xfer_state(handle))

    def wait(self, handle, seconds: float = 30.0) -> str:
        deadline = time.monotonic() + seconds
        while (state := self.poll(handle)) == "PROC":
            if time.monotonic() > deadline:
                return "no progress"
            time.sleep(0.0005)
        return state

    def transfer(self, direction: str, address: int, size: int, paths: list[Path], flags: str) -> str:
        """One complete transfer of one `size` piece per path, released and deregistered."""
        registered, descs = self.files(paths, size, flags)
        handle = self.start(direction, address, [size] * len(paths), descs)
        state = self.wait(handle)
        self.attempt(self.agent.release_xfer_handle, handle)
        self.agent.deregister_memory(registered)
        return state

    def usable(self, address: int) -> None:
        """The agent still completes an ordinary write and read."""
        for direction, flags in (("WRITE", "rw,create"), ("READ", "ro")):
            state = self.transfer(direction, address, 4096, [self.folder / "usable"], flags)
            expect(state == "DONE", f"a later transfer fails: {direction} -> {state}")


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


@case
def round_trip(bench: Bench) -> None:
    """256 x 64 KiB through O_DIRECT come back bit-equal."""
    memory, address = bench.memory(256 << 16)
    data = os.urandom(256 << 16)
    memory[:] = data
    paths = [bench.folder / f"f{i}" for i in range(256)]
    expect(bench.transfer("WRITE", address, 1 << 16, paths, "rw,create,direct") == "DONE", "write failed")
    memory[:] = bytes(256 << 16)
    expect(bench.transfer("READ", address, 1 << 16, paths, "ro,direct") == "DONE", "read failed")
    expect(memory[:] == data, "bytes differ")


@case
def short_read(bench: Bench) -> None:
    """Reading past the end of a file is an error, not DONE with bytes missing."""
    _, address = bench.memory(1 << 16, 0xFF)
    for size in (0, 100, 1 << 15):
        path = bench.folder / f"short{size}"
        path.write_bytes(b"x" * size)
        state = bench.transfer("READ", address, 1 << 16, [path], "ro")
        expect(state == FAILED, f"65536 bytes of a {size}-byte file: {state}")
    bench.usable(address)


@case
def beyond_2_gib(bench: Bench) -> None:
    """A write of more than 2 GiB is complete or an error, not DONE with a shorter file."""
    size = (2 << 30) + 64 * MIB
    if shutil.disk_usage(bench.folder).free < 2 * size:
        raise NotRun(f"needs {2 * size >> 30} GiB of free disk")
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    bench.agent.register_memory(bench.agent.get_reg_descs([(address, size, 0, "")], "DRAM"))
    path = bench.folder / "big"
    registered, descs = bench.files([path], size, "rw,create")
    handle = bench.start("WRITE", address, [size], descs)
    state = bench.wait(handle, 100)
    stored = path.stat().st_size
    path.unlink()
    expect(state != "DONE" or stored == size, f"DONE, but {stored} of {size} bytes are stored")
    expect(state in ("DONE", FAILED), state)
    bench.attempt(bench.agent.release_xfer_handle, handle)
    bench.agent.deregister_memory(registered)


@case
def read_only_descriptor(bench: Bench) -> None:
    """A write to a read-only descriptor is an error, and the agent stays usable."""
    _, address = bench.memory(4096, 1)
    path = bench.folder / "read-only"
    path.write_bytes(bytes(4096))
    handle = bench.start("WRITE", address, [4096], bench.open_files([os.open(path, os.O_RDONLY)], [4096]))
    state = bench.wait(handle)
    expect(state == FAILED, state)
    bench.usable(address)


@case
def crossed_completion(bench: Bench) -> None:
    """Of two requests in flight, the one that failed is the one reported as failed."""
    _, address = bench.memory(8192, 1)
    good, bad = bench.folder / "good", bench.folder / "bad"
    bad.write_bytes(bytes(4096))
    bad_descs = bench.open_files([os.open(bad, os.O_RDONLY)], [4096])
    _, good_descs = bench.files([good], 4096, "rw,create")
    a = bench.start("WRITE", address, [4096], bad_descs)
    b = bench.start("WRITE", address + 4096, [4096], good_descs)
    state_b, state_a = bench.wait(b), bench.wait(a)
    expect((state_a, state_b) == (FAILED, "DONE"), f"failing request {state_a}, good request {state_b}")


@case
def queue_depth(bench: Bench) -> None:
    """256 pieces go through a kernel queue of 16."""
    small = Bench(bench.folder, bench.queue, kernel_queue_size="16")
    _, address = small.memory(256 * 4096, 1)
    paths = [bench.folder / f"q{i}" for i in range(256)]
    state = small.transfer("WRITE", address, 4096, paths, "rw,create")
    expect(state == "DONE", state)


@case
def completion_overflow(bench: Bench) -> None:
    """4096 pieces complete although nobody polls for a second."""
    count = 4096
    _, address = bench.memory(count * 4096, 1)
    with (bench.folder / "overflow").open("wb") as file:
        file.truncate(count * 4096)
    fd = os.open(bench.folder / "overflow", os.O_RDWR)
    registered = bench.agent.register_memory(bench.agent.get_reg_descs([(0, count * 4096, fd, "")], "FILE"))
    descs = bench.agent.get_xfer_descs([((count - 1 - i) * 4096, 4096, fd) for i in range(count)], "FILE")
    handle = bench.start("WRITE", address, [4096] * count, descs)
    for _ in range(100):
        bench.poll(handle)
    time.sleep(1)
    state = bench.wait(handle, 10)
    expect(state == "DONE", state)
    bench.agent.release_xfer_handle(handle)
    bench.agent.deregister_memory(registered)


def expect_refused(action: Callable[[], object], accepted: str) -> None:
    """NIXL's bindings raise classes of their own for each status: any of them is a refusal."""
    try:
        action()
    except Exception:
        return
    raise AssertionError(accepted)


@case
def duplicate_device_id(bench: Bench) -> None:
    """Two paths under one device id are refused."""
    rows = [(0, 4096, 7, f"rw,create:{bench.folder / name}") for name in ("one", "two")]
    expect_refused(lambda: bench.agent.register_memory(bench.agent.get_reg_descs(rows, "FILE")), "both were registered")


@case
def outside_registered_memory(bench: Bench) -> None:
    """A transfer beyond the registered host range is refused."""
    _, address = bench.memory(4096, 1)
    _, descs = bench.files([bench.folder / "outside"], 8192, "rw,create")
    expect_refused(lambda: bench.start("WRITE", address, [8192], descs), "it was accepted")


@case
def length_mismatch(bench: Bench) -> None:
    """Host and file pieces of different lengths are refused."""
    _, address = bench.memory(8192, 1)
    _, descs = bench.files([bench.folder / "mismatch"], 4096, "rw,create")
    expect_refused(lambda: bench.start("WRITE", address, [8192], descs), "it was accepted")


@case
def error_means_finished(bench: Bench) -> None:
    """A failed request has no I/O in flight: its memory no longer changes once the error is reported."""
    size = 256 * MIB
    path = bench.folder / "large"
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(b"\x5a" * MIB)
        os.fsync(file.fileno())
    memory, address = bench.memory(size + 4096, 0)
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECT), os.open(bench.folder / "wo", os.O_CREAT | os.O_WRONLY)]
    handle = bench.start("READ", address, [size, 4096], bench.open_files(fds, [size, 4096]))
    state = bench.wait(handle)
    missing = [offset for offset in range(0, size, 4096) if memory[offset] == 0]
    expect(state == FAILED, state)
    for _ in range(20):
        time.sleep(0.05)
        bench.usable(address + size)
    late = sum(memory[offset] != 0 for offset in missing)
    expect(not late, f"{late} blocks of 4 KiB arrived after the error")


@case
def release_in_flight(bench: Bench) -> None:
    """Releasing a request with I/O in flight is refused or waited for; the process survives."""
    count = 64
    _, address = bench.memory(count * MIB + 4096, 1)
    paths = [bench.folder / f"r{i}" for i in range(count)]
    expect(bench.transfer("WRITE", address, MIB, paths, "rw,create,direct") == "DONE", "write failed")
    for attempt in range(4):
        direction, flags = ("READ", "ro,direct") if attempt % 2 else ("WRITE", "rw,create,direct")
        registered, descs = bench.files(paths, MIB, flags)
        handle = bench.start(direction, address, [MIB] * count, descs)
        bench.attempt(bench.agent.release_xfer_handle, handle)
        bench.attempt(bench.agent.deregister_memory, registered)
        if attempt < 3:  # after the last one the process ends
            bench.usable(address + count * MIB)


@case
def misaligned_direct_io(bench: Bench) -> None:
    """O_DIRECT pieces that are no multiple of the block are an error, and the agent stays usable."""
    _, address = bench.memory(1 << 16, 1)
    paths = [bench.folder / f"m{i}" for i in range(4)]
    state = bench.transfer("WRITE", address, 8208, paths, "rw,create,direct")
    sizes = [path.stat().st_size for path in paths]
    expect(state == FAILED or sizes == [8208] * 4, f"{state}, file sizes {sizes}")
    bench.usable(address)


def mount_small_tmpfs(target: Path) -> None:
    """A 4 MiB file system of this process's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, new_user = 0x00020000, 0x10000000
    if libc.unshare(new_namespace if os.geteuid() == 0 else new_namespace | new_user):
        raise NotRun(f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}")
    private_recursively = 0x4000 | 0x40000
    libc.mount(None, b"/", None, private_recursively, None)
    target.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", 0, b"size=4m"):
        raise NotRun(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")


@case
def no_space(bench: Bench) -> None:
    """A write that the file system has no room for is an error, and the agent stays usable."""
    target = bench.folder / "small"
    mount_small_tmpfs(target)
    _, address = bench.memory(16 * MIB, 1)
    state = bench.transfer("WRITE", address, MIB, [target / f"n{i}" for i in range(16)], "rw,create")
    stored = sum(path.stat().st_size for path in target.iterdir())
    expect(state == FAILED, f"{state}, {stored >> 20} of 16 MiB stored")
    bench.usable(address)


@case
def device_error(bench: Bench) -> None:
    """A read that the kernel answers with EIO is an error, and the agent stays usable."""
    _, address = bench.memory(4096, 1)
    # Address 0 of a process is never mapped: reading it through /proc gives EIO.
    handle = bench.start("READ", address, [4096], bench.open_files([os.open("/proc/self/mem", os.O_RDONLY)], [4096]))
    state = bench.wait(handle)
    expect(state == FAILED, state)
    bench.usable(address)


def run_case(name: str, queue: str, folder: Path, timeout: float) -> dict[str, str]:
    """Run one case in a child; a signal or a time-out of the child is a failed case."""
    folder.mkdir(parents=True)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        result, detail = "pass", ""
        try:
            CASES[name](Bench(folder, queue))
        except AssertionError as error:
            result, detail = "fail", str(error)
        except NotRun as error:
            result, detail = "not run", str(error)
        except Exception as error:
            result, detail = "fail", f"{type(error).__name__}: {error}"
        os.write(write_end, json.dumps([result, detail]).encode())
        os.close(write_end)
        sys.exit(0)  # not os._exit: tearing the agent down is part of the case
    os.close(write_end)
    deadline, status = time.monotonic() + timeout, None
    while status is None and time.monotonic() < deadline:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = code if pid else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    answer = os.read(read_end, 1 << 16)
    os.close(read_end)
    shutil.rmtree(folder, ignore_errors=True)
    if status is None:
        result, detail = "fail", f"hangs for {timeout:.0f} s"
    elif os.WIFSIGNALED(status):
        result, detail = "fail", f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    elif not answer:
        result, detail = "fail", f"exit code {os.waitstatus_to_exitcode(status)} without an answer"
    else:
        result, detail = json.loads(answer)
    return {"queue": queue, "case": name, "result": result, "detail": detail}


def main() -> None:
    folder, queues, names, timeout = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(","), sys.argv[4]
    import nixl._api

    location = sys.modules.get("nixl_cu13", nixl).__file__
    print(json.dumps({"location": location, "version": nixl_version(location)}), flush=True)
    for name in names:
        for queue in queues:
            for _ in range(REPEATS.get(name, 1)):
                row = run_case(name, queue, folder / f"{name}-{queue}", float(timeout))
                if row["result"] != "pass":
                    break
            print(json.dumps(row), flush=True)


def nixl_version(location: str) -> str:
    """Version from the dist-info beside the module that was imported."""
    module = Path(location).parent
    found = sorted(module.parent.glob(f"{module.name}-*.dist-info"))
    return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found else "unknown"


if __name__ == "__main__":
    main()
