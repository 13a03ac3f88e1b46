"""NIXL refuses to register a file under a device id that another live file has (nixl#1790)."""

import ctypes

import pytest
from nixl_cu13._api import nixl_agent, nixl_agent_config

SIZE = 4096


@pytest.fixture
def agent():
    made = nixl_agent("guard", nixl_agent_config(backends=[]))
    made.create_backend("POSIX")
    return made


@pytest.fixture
def files(tmp_path):
    """Two files, of ones and of twos."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for number, path in enumerate(paths, 1):
        path.write_bytes(bytes([number]) * SIZE)
    return paths


def register(agent, device_id, path):
    """A path-mode registration: the descriptor names the file, and NIXL opens it."""
    return agent.register_memory([(0, SIZE, device_id, f"rw:{path}")], "FILE", backends=["POSIX"])


def read(agent, device_id):
    """The first byte behind `device_id`; every byte must be the same."""
    buffer = ctypes.create_string_buffer(SIZE)
    place = (ctypes.addressof(buffer), SIZE, 0)
    memory = agent.register_memory([(*place, "")], "DRAM", backends=["POSIX"])
    local = agent.get_xfer_descs([place], "DRAM")
    remote = agent.get_xfer_descs([(0, SIZE, device_id)], "FILE")
    handle = agent.initialize_xfer("READ", local, remote, "guard", backends=["POSIX"])
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)
    agent.deregister_memory(memory)
    assert state == "DONE"
    assert len(set(buffer.raw)) == 1
    return buffer.raw[0]


def test_a_live_id_is_refused_for_another_file(agent, files):
    register(agent, 7, files[0])
    try:
        register(agent, 7, files[1])
    except Exception as error:
        assert "BACKEND" in str(error) or "PARAM" in str(error), error
    else:
        pytest.fail("two files are registered as device 7")
    assert read(agent, 7) == 1


def test_other_ids_and_freed_ids_are_taken(agent, files):
    first = register(agent, 7, files[0])
    register(agent, 8, files[1])
    assert (read(agent, 7), read(agent, 8)) == (1, 2)
    agent.deregister_memory(first, backends=["POSIX"])
    register(agent, 7, files[1])
    assert read(agent, 7) == 2
