"""A handle is released only when NIXL has finished with the memory. A read from a pipe stays in flight at will."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from nixl_storage import fill, kv_indices, kv_pool, needs_nixl, storage

pytestmark = needs_nixl


class PipeRead:
    """One 4096-byte READ from an empty pipe into page 0 of a registered pool."""

    def __init__(self, tmp_path, monkeypatch):
        self.pool = kv_pool(2)
        self.store = storage(tmp_path, monkeypatch, kv=self.pool)
        self.read_fd, self.write_fd = os.pipe()
        agent = self.store.agent
        self.file = agent.register_memory(agent.get_reg_descs([(0, 4096, self.read_fd, "")], "FILE"))
        self.host = agent.get_xfer_descs([(self.pool.kv_buffer.data_ptr(), 4096, 0)], "DRAM")
        self.disk = agent.get_xfer_descs([(0, 4096, self.read_fd)], "FILE")
        self.in_flight_at_release: list[bool] = []
        release, check = agent.release_xfer_handle, agent.check_xfer_state

        def watched_release(handle):
            in_flight = not self.arrived()
            self.in_flight_at_release.append(in_flight)
            while in_flight and check(handle) == "PROC":  # so that an early release does no damage here
                time.sleep(0.001)
            return release(handle)

        monkeypatch.setattr(agent, "release_xfer_handle", watched_release)

    def arrived(self) -> bool:
        return bool(self.pool.kv_buffer.flatten()[0] != 0)

    def send_after(self, seconds: float) -> threading.Thread:
        thread = threading.Timer(seconds, lambda: os.write(self.write_fd, b"\x3f" * 4096))
        thread.start()
        return thread

    def run(self) -> bool:
        return self.store._xfer_and_wait(self.host, self.disk, "READ")


@pytest.mark.parametrize("good_polls", [0, 3])
def test_exception_from_a_poll(tmp_path, monkeypatch, good_polls):
    pipe = PipeRead(tmp_path, monkeypatch)
    check, polls = pipe.store.agent.check_xfer_state, []

    def fails_once(handle):
        polls.append(handle)
        if len(polls) == good_polls + 1:
            raise RuntimeError("poll interrupted")
        return check(handle)

    monkeypatch.setattr(pipe.store.agent, "check_xfer_state", fails_once)
    sender = pipe.send_after(0.3)
    assert pipe.run() is False
    sender.join()
    assert pipe.in_flight_at_release == [False]


def test_error_state_reported_once(tmp_path, monkeypatch):
    pipe = PipeRead(tmp_path, monkeypatch)
    check, polls = pipe.store.agent.check_xfer_state, []

    def fails_once(handle):
        polls.append(handle)
        return "ERR" if len(polls) == 1 else check(handle)

    monkeypatch.setattr(pipe.store.agent, "check_xfer_state", fails_once)
    sender = pipe.send_after(0.3)
    assert pipe.run() is False
    sender.join()
    assert pipe.in_flight_at_release == [False]


def test_interrupt_while_waiting(tmp_path, monkeypatch):
    pipe = PipeRead(tmp_path, monkeypatch)
    check, polls = pipe.store.agent.check_xfer_state, []

    def interrupted_once(handle):
        polls.append(handle)
        if len(polls) == 1:
            raise KeyboardInterrupt
        return check(handle)

    monkeypatch.setattr(pipe.store.agent, "check_xfer_state", interrupted_once)
    sender = pipe.send_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        pipe.run()
    sender.join()
    assert pipe.in_flight_at_release == [False]


def test_io_that_never_settles_ends_the_server(tmp_path, monkeypatch, caplog):
    """Nothing is released while it waits; the signal is sent once, to the process that ends all others."""
    pipe, sent = PipeRead(tmp_path, monkeypatch), []

    def kill(process, number):
        sent.append((process, number))
        pipe.send_after(0.3)  # meanwhile the wait goes on

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(type(pipe.store), "_DRAIN_WARN_SEC", 0.05)
    monkeypatch.setattr(type(pipe.store), "_DRAIN_LIMIT_SEC", 0.2)
    check, polls = pipe.store.agent.check_xfer_state, []

    def fails_once(handle):
        polls.append(handle)
        return "ERR" if len(polls) == 1 else check(handle)

    monkeypatch.setattr(pipe.store.agent, "check_xfer_state", fails_once)
    assert pipe.run() is False
    assert sent == [(os.getppid(), signal.SIGQUIT)]
    assert pipe.in_flight_at_release == [False]
    assert "I/O in flight, until" in caplog.text and "ending the server" in caplog.text
    assert pipe.store.drained_transfers == 1 and "(1 such transfers so far)" in caplog.text


def test_finished_transfer_is_released_once(tmp_path, monkeypatch):
    pipe = PipeRead(tmp_path, monkeypatch)
    os.write(pipe.write_fd, b"\x3f" * 4096)
    assert pipe.run() is True
    assert pipe.in_flight_at_release == [False]


def test_failed_transfer_ends(tmp_path, monkeypatch):
    """A request that NIXL itself gave up on must not be waited for, and must not spoil the next one."""
    pool = kv_pool(2)
    store = storage(tmp_path, monkeypatch, kv=pool)
    write_only = os.open(tmp_path / "write-only", os.O_CREAT | os.O_WRONLY)
    agent = store.agent
    file = agent.register_memory(agent.get_reg_descs([(0, 4096, write_only, "")], "FILE"))
    host = agent.get_xfer_descs([(pool.kv_buffer.data_ptr(), 4096, 0)], "DRAM")
    started = time.monotonic()
    assert store._xfer_and_wait(host, agent.get_xfer_descs([(0, 4096, write_only)], "FILE"), "READ") is False
    assert time.monotonic() - started < 5
    agent.deregister_memory(file)
    fill(pool, 2, seed=1)
    assert store.batch_set_v1(["a", "b"], kv_indices(["a", "b"])) == [True, True]
