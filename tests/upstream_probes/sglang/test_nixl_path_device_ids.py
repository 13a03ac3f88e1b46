"""Two live path-mode registrations never share a device id, whichever began first (sglang#34362)."""

import threading
from types import SimpleNamespace

from sglang.srt.mem_cache.storage.nixl.nixl_registry import NixlRegistry


class Agent:
    """Remembers the ids that are registered now, and takes path mode."""

    def __init__(self):
        self.live: list[int] = []

    def get_reg_descs(self, items, mem_type):
        return items

    def register_memory(self, items):
        ids = [item[2] for item in items]
        self.live += ids
        return SimpleNamespace(ids=ids, trim=lambda: ids)

    def deregister_memory(self, registration):
        for one in registration.ids:
            self.live.remove(one)


def registry():
    made = NixlRegistry(Agent(), "FILE", SimpleNamespace(use_direct_io=False))
    made.path_mode = True
    return made


def test_nested_registrations_have_disjoint_ids():
    made = registry()
    outer = made.storage([(0, 8)] * 3, ["a", "b", "c"], "WRITE")
    inner = made.storage([(0, 8)] * 2, ["d", "e"], "WRITE")
    with outer as first, inner as second:
        assert not set(first) & set(second)
        assert len(set(made.agent.live)) == len(made.agent.live) == 5


def test_concurrent_registrations_have_disjoint_ids():
    made, seen, barrier = registry(), [], threading.Barrier(4)

    def work():
        with made.storage([(0, 8)] * 50, [str(i) for i in range(50)], "WRITE") as ids:
            seen.extend(ids)
            barrier.wait(timeout=20)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 200 == len(set(seen))
