"""Nothing that a POSIX transfer uses may be let go while its I/O is in flight.

Every case runs in a child process, as getting it wrong corrupts the heap of the process or writes to a stranger's
file. Started with a case's name, this file is that child.
"""

import ctypes
import gc
import mmap
import os
import subprocess
import sys
import threading
import time

import nixl_cu13
import pytest
from nixl_cu13._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

QUEUES = {"io_uring": "use_uring", "libaio": "use_aio", "posix_aio": "use_posix_aio"}
# A transfer from an empty pipe stays in flight until the test feeds the pipe. libaio blocks when it is submitted.
PIPE_QUEUES = ["io_uring", "posix_aio"]

# More blocks than fit into a queue, so that some are not even submitted yet when the first ones complete
BLOCK, BLOCKS = 64 * 1024, 300
SIZE = BLOCK * BLOCKS


def run_child(case: str, queue: str, tmp_path) -> None:
    try:
        child = subprocess.run(
            [sys.executable, __file__, case, queue, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(nixl_cu13.__file__))},
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{case} on {queue} hangs")
    assert child.returncode == 0 and "case done" in child.stdout, (
        f"{case} on {queue} exited with {child.returncode}:\n{child.stdout[-3000:]}"
    )


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("case", ["release", "release_and_go_on", "release_prepped"])
def test_release_waits_for_the_io(case, queue, tmp_path):
    run_child(case, queue, tmp_path)


@pytest.mark.parametrize("queue", QUEUES)
def test_dropped_handle_is_kept_until_its_io_is_over(queue, tmp_path):
    run_child("drop_handle", queue, tmp_path)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("case", ["deregister_file", "deregister_buffer"])
def test_deregistering_waits_for_the_io(case, queue, tmp_path):
    run_child(case, queue, tmp_path)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("case", ["destroy_agent", "destroy_agent_in_a_cycle"])
def test_destroying_the_agent_waits_for_the_io(case, queue, tmp_path):
    run_child(case, queue, tmp_path)


@pytest.mark.parametrize("queue", QUEUES)
def test_release_times_out_with_nothing_released(queue, tmp_path):
    run_child("time_out_file" if queue == "libaio" else "time_out_pipe", queue, tmp_path)


@pytest.mark.parametrize("queue", PIPE_QUEUES)
@pytest.mark.parametrize("case", ["deregister_unrelated", "exit_with_stuck_io"])
def test_stuck_io_is_contained(case, queue, tmp_path):
    run_child(case, queue, tmp_path)


def test_deregistering_in_one_thread_and_releasing_in_another(tmp_path):
    run_child("two_threads", "io_uring", tmp_path)


@pytest.mark.parametrize("seconds", [-1, -0.5, float("nan")])
def test_release_timeout_is_validated(seconds):
    with pytest.raises(ValueError, match="release_timeout"):
        nixl_agent_config(backends=[], release_timeout=seconds)


class Rig:
    """An agent with one POSIX queue and a registered buffer."""

    def __init__(self, queue: str, folder: str, **config):
        self.folder = folder
        self.agent = nixl_agent("probe", nixl_agent_config(backends=[], **config))
        self.agent.create_backend("POSIX", {QUEUES[queue]: "true"})
        self.buffer = mmap.mmap(-1, SIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        self.buffer_reg = self.agent.register_memory([(self.address, SIZE, 0, "")], "DRAM")

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def register_file(self, name: str, dev_id: int):
        return self.agent.register_memory([(0, SIZE, dev_id, f"rw,create,direct:{self.path(name)}")], "FILE")

    def descs(self, dev_id: int):
        memory = [(self.address + i * BLOCK, BLOCK, 0) for i in range(BLOCKS)]
        file = [(i * BLOCK, BLOCK, dev_id) for i in range(BLOCKS)]
        return self.agent.get_xfer_descs(memory, "DRAM"), self.agent.get_xfer_descs(file, "FILE")

    def start_write(self, dev_id: int, fill: bytes):
        """Post a write of the whole buffer and return its handle while it is surely in flight."""
        self.fill(fill)
        handle = self.agent.initialize_xfer("WRITE", *self.descs(dev_id), "probe")
        self.post(handle)
        return handle

    def fill(self, fill: bytes) -> None:
        self.buffer.seek(0)
        self.buffer.write(fill * SIZE)

    def post(self, handle) -> None:
        for _ in range(50):
            self.agent.transfer(handle)
            if self.agent.check_xfer_state(handle) == "PROC":
                return
        raise AssertionError("the disk is too fast for this test")

    def start_pipe_read(self):
        """Post a read that stays in flight until the returned pipe is written to."""
        read_end, write_end = os.pipe()
        file_reg = self.agent.register_memory([(0, 4096, read_end, "")], "FILE")
        handle = self.agent.initialize_xfer(
            "READ",
            self.agent.get_xfer_descs([(self.address, 4096, 0)], "DRAM"),
            self.agent.get_xfer_descs([(0, 4096, read_end)], "FILE"),
            "probe",
        )
        self.post(handle)
        return handle, write_end, file_reg

    def wait(self, handle) -> str:
        deadline = time.monotonic() + 10
        while (state := self.agent.check_xfer_state(handle)) == "PROC" and time.monotonic() < deadline:
            time.sleep(0.0005)
        return state

    def holds(self, name: str, fill: bytes) -> bool:
        with open(self.path(name), "rb") as f:
            return f.read() == fill * SIZE

    def next_transfer_is_right(self) -> None:
        """DONE of a later transfer means that *it* is done: the completions of the released one are not counted."""
        second = self.register_file("second.bin", 2)
        handle = self.start_write(2, b"2")
        assert self.wait(handle) == "DONE"
        assert self.holds("second.bin", b"2")
        self.agent.release_xfer_handle(handle)
        self.agent.deregister_memory(second)


def case_release(queue, folder):
    rig = Rig(queue, folder)
    first = rig.register_file("first.bin", 1)
    handle = rig.start_write(1, b"1")
    handle.release()
    assert rig.holds("first.bin", b"1"), "released with I/O in flight"
    rig.next_transfer_is_right()
    rig.agent.deregister_memory(first)


def case_release_and_go_on(queue, folder):
    """Without looking at the file, so that completions that arrive after the release are processed."""
    rig = Rig(queue, folder)
    first = rig.register_file("first.bin", 1)
    rig.start_write(1, b"1").release()
    rig.next_transfer_is_right()
    rig.agent.deregister_memory(first)


def case_release_prepped(queue, folder):
    rig = Rig(queue, folder)
    rig.register_file("first.bin", 1)
    memory, file = rig.descs(1)
    rig.fill(b"1")
    local = rig.agent.prep_xfer_dlist("NIXL_INIT_AGENT", memory)
    remote = rig.agent.prep_xfer_dlist("probe", file)
    indices = list(range(BLOCKS))
    handle = rig.agent.make_prepped_xfer("WRITE", local, indices, remote, indices)
    rig.post(handle)
    # The request has copied what it needs, so these can go at any time
    rig.agent.release_dlist_handle(local)
    rig.agent.release_dlist_handle(remote)
    rig.agent.release_xfer_handle(handle)
    rig.agent.release_xfer_handle(handle)
    assert rig.holds("first.bin", b"1"), "released with I/O in flight"
    rig.next_transfer_is_right()


def case_drop_handle(queue, folder):
    rig = Rig(queue, folder)
    first = rig.register_file("first.bin", 1)
    handle = rig.start_write(1, b"1")
    begin = time.monotonic()
    del handle
    assert time.monotonic() - begin < 1, "a finalizer must not wait"
    rig.agent.deregister_memory(first)
    assert rig.holds("first.bin", b"1"), "deregistered with I/O in flight"
    rig.next_transfer_is_right()


def case_deregister_file(queue, folder):
    """The file's descriptor is closed by deregistering, and its number goes to the next file that is opened."""
    rig = Rig(queue, folder)
    first = rig.register_file("first.bin", 1)
    handle = rig.start_write(1, b"1")
    rig.agent.deregister_memory(first)
    with open(rig.path("stranger.txt"), "w+") as stranger:
        stranger.write("mine")
        stranger.flush()
        rig.wait(handle)
        assert os.path.getsize(stranger.name) == 4, "a transfer was written to another file"
    assert rig.holds("first.bin", b"1"), "deregistered with I/O in flight"
    handle.release()


def case_deregister_buffer(queue, folder):
    rig = Rig(queue, folder)
    rig.register_file("first.bin", 1)
    memory, file = rig.descs(1)
    rig.fill(b"1")
    handle = rig.agent.initialize_xfer("WRITE", memory, file, "probe")
    # The request has its own copy of the lists
    memory.clear()
    file.clear()
    rig.post(handle)
    rig.agent.deregister_memory(rig.buffer_reg)
    rig.fill(b"-")
    assert rig.wait(handle) == "DONE"
    assert rig.holds("first.bin", b"1"), "a buffer was read after it was deregistered"
    handle.release()


def case_destroy_agent(queue, folder):
    rig = Rig(queue, folder)
    rig.register_file("first.bin", 1)
    handle = rig.start_write(1, b"1")
    del rig.agent
    del handle
    assert rig.holds("first.bin", b"1"), "destroyed with I/O in flight"


def case_destroy_agent_in_a_cycle(queue, folder):
    rig = Rig(queue, folder)
    rig.register_file("first.bin", 1)
    owner = {"agent": rig.agent, "handle": rig.start_write(1, b"1")}
    owner["agent"].owner = owner
    del rig.agent, owner
    gc.collect()
    assert rig.holds("first.bin", b"1"), "destroyed with I/O in flight"


def case_time_out_pipe(queue, folder):
    rig = Rig(queue, folder, release_timeout=0.2)
    handle, write_end, file_reg = rig.start_pipe_read()
    for let_go in (
        handle.release,
        lambda: rig.agent.deregister_memory(file_reg),
        lambda: rig.agent.deregister_memory(rig.buffer_reg),
    ):
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match=r"agent probe still in flight after 0\.2 s .*Nothing was released"):
            let_go()
        assert 0.2 <= time.monotonic() - begin < 5
    assert rig.agent.check_xfer_state(handle) == "PROC"

    os.write(write_end, b"x" * 4096)
    assert rig.wait(handle) == "DONE"
    assert rig.buffer[:4096] == b"x" * 4096
    handle.release()
    rig.agent.deregister_memory(file_reg)
    rig.agent.deregister_memory(rig.buffer_reg)


def case_time_out_file(queue, folder):
    rig = Rig(queue, folder, release_timeout=0)
    first = rig.register_file("first.bin", 1)
    handle = rig.start_write(1, b"1")
    with pytest.raises(TimeoutError, match="still in flight after 0 s"):
        rig.agent.release_xfer_handle(handle)
    with pytest.raises(TimeoutError, match="still in flight after 0 s"):
        rig.agent.deregister_memory(first)
    assert rig.wait(handle) == "DONE"
    assert rig.holds("first.bin", b"1")
    handle.release()
    rig.agent.deregister_memory(first)


def case_deregister_unrelated(queue, folder):
    rig = Rig(queue, folder, release_timeout=0.2)
    other_file = rig.register_file("other.bin", 1)
    other_buffer = bytearray(4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(other_buffer))
    other_memory = rig.agent.register_memory([(address, 4096, 0, "")], "DRAM")
    handle, write_end, _ = rig.start_pipe_read()
    rig.agent.deregister_memory(other_file)
    rig.agent.deregister_memory(other_memory)
    os.write(write_end, b"x" * 4096)
    assert rig.wait(handle) == "DONE"
    handle.release()


def case_exit_with_stuck_io(queue, folder):
    """I/O that never ends delays the end of the process by the time-out, and does not crash it."""
    rig = Rig(queue, folder, release_timeout=0.2)
    handle, _, _ = rig.start_pipe_read()
    begin = time.monotonic()
    del rig.agent
    del handle
    gc.collect()
    assert 0.2 <= time.monotonic() - begin < 5


def case_two_threads(queue, folder):
    """A deregistration polls a request that the other thread finishes, releases and starts again."""
    # by default an agent belongs to one thread: NIXL itself takes no lock then
    rig = Rig(queue, folder, sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
    file = rig.register_file("first.bin", 1)
    pipe_read, write_end, _ = rig.start_pipe_read()
    errors = []

    def release_and_restart():
        try:
            for _ in range(5):
                handle = rig.start_write(1, b"1")
                handle.release()
            os.write(write_end, b"x" * 4096)
            pipe_read.release()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=release_and_restart)
    thread.start()
    rig.agent.deregister_memory(rig.buffer_reg)
    thread.join()
    assert not errors
    rig.agent.deregister_memory(file)


if __name__ == "__main__":
    globals()[f"case_{sys.argv[1]}"](*sys.argv[2:])
    print("case done")
