"""--gdn-recover-overlap: whoever reads or writes a state slot waits for the recovery on the side stream.

The side stream is a stand-in that runs nothing until somebody waits for it: the latest moment that a real one may
choose. A reader that forgets to join sees the old state, every time.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import contextlib
import sys
import types
from pathlib import Path

import pytest
import torch
from sglang.srt.runtime_context import get_context

sys.path.insert(0, str(Path(__file__).parent))
from gdn_rig import DRAFTS, Rig, interpreted_commit, window


class LazyDevice:
    """A device module whose side stream is as late as it can be: its work runs when its event is waited for."""

    def __init__(self):
        self.pending, self.waits = [], 0
        self.main = types.SimpleNamespace(wait_event=self._wait)
        self.inside = None

    def Stream(self):
        return types.SimpleNamespace(wait_stream=lambda other: None, record_event=lambda: "done")

    def current_stream(self):
        return self.main

    @contextlib.contextmanager
    def stream(self, side):
        yield

    def _wait(self, event):
        assert event == "done"
        self.waits += 1
        while self.pending:
            self.pending.pop(0)()


class Queue:
    """A stream that runs its work when it is told to, or when another's work has to wait for it, and no further."""

    def __init__(self):
        self.work, self.done = [], 0

    def enqueue(self, work):
        self.work.append(work)

    def run(self, upto=None):
        while self.done < (len(self.work) if upto is None else upto):
            self.done += 1
            self.work[self.done - 1]()

    def wait_stream(self, other):
        upto = len(other.work)
        self.enqueue(lambda: other.run(upto))

    def record_event(self):
        return self, len(self.work)

    def wait_event(self, event):
        stream, upto = event
        self.enqueue(lambda: stream.run(upto))


class QueueDevice:
    """A device module of two such streams."""

    def __init__(self):
        self.main, self.side = Queue(), Queue()
        self.current, self.capturing = self.main, False

    def Stream(self):
        return self.side

    def current_stream(self):
        return self.current

    def is_current_stream_capturing(self):
        return self.capturing

    @contextlib.contextmanager
    def stream(self, stream):
        self.current = stream
        yield
        self.current = self.main


@pytest.fixture
def streams(monkeypatch):
    """streams() -> a RecoverOverlap between two streams, its device, a commit of `window` to `state`, who held tensors."""

    def two_streams():
        try:
            from sglang.srt.layers.attention.linear.gdn_recover_overlap import RecoverOverlap
        except ImportError:
            pytest.fail("the runtime has no --gdn-recover-overlap")
        device, held = QueueDevice(), []
        monkeypatch.setattr(torch, "get_device_module", lambda name=None: device)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: held.append((tensor, stream)))

        def commit(state, window, at):
            device.current.enqueue(lambda: state.__setitem__(at, window[at]))

        return RecoverOverlap("cpu"), device, commit, held

    return two_streams


def test_the_side_stream_waits_for_what_the_recovery_reads(streams):
    overlap, device, commit, _ = streams()
    state, window = torch.zeros(2), torch.zeros(2)
    device.main.enqueue(lambda: window.fill_(7))
    overlap.submit(commit, state, window, 1)
    device.side.run()  # as early as it may
    assert state.tolist() == [0, 7]


def test_who_joins_waits_for_the_commit_itself(streams):
    overlap, device, commit, _ = streams()
    state, window, seen = torch.zeros(2), torch.ones(2), []
    overlap.submit(commit, state, window, 0)
    overlap.submit(commit, state, window, 1)
    for _ in range(2):
        overlap.join()
        device.main.enqueue(lambda: seen.append(state.tolist()))
    device.main.run()  # the side stream as late as it may
    assert seen == [[1, 1]] * 2


def test_nobody_waits_before_the_first_recovery_or_in_a_capture(streams):
    overlap, device, commit, _ = streams()
    overlap.join()
    assert device.main.work == []
    overlap.submit(commit, torch.zeros(1), torch.ones(1), 0)
    device.capturing = True
    overlap.join()
    assert device.main.work == []


def test_tensors_are_held_until_the_side_stream_has_read_them(streams):
    overlap, device, commit, held = streams()
    state, window = torch.zeros(1), torch.ones(1)
    overlap.submit(commit, state, window, 0)
    assert [(id(tensor), stream) for tensor, stream in held] == [(id(state), device.side), (id(window), device.side)]


def test_without_a_side_stream_the_commit_runs_at_once(streams):
    streams()  # or the test fails
    from sglang.srt.layers.attention.linear.gdn_recover_overlap import run_recovery

    seen = []
    run_recovery(None, lambda *arguments: seen.append(arguments), 1, 2)
    assert seen == [(1, 2)]


@pytest.fixture
def build(monkeypatch):
    """build() -> a rig whose commits go to a side stream; fails the test where the runtime has none."""
    override = get_context().override_server_args(
        speculative_eagle_topk=1, speculative_num_draft_tokens=DRAFTS, attention_backend="triton"
    )
    override.install()

    def rig_with_overlap():
        try:
            from sglang.srt.layers.attention.linear import gdn_recover_overlap
            from sglang.srt.layers.attention.linear import gdn_recover_state as recover
        except ImportError:
            pytest.fail("the runtime has no --gdn-recover-overlap")
        device = LazyDevice()
        monkeypatch.setattr(torch, "get_device_module", lambda name=None: device)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
        commit = recover.commit_recovered_states

        def run_late(*arguments):
            with interpreted_commit():
                commit(*arguments)

        def deferred(*arguments):
            device.pending.append(lambda: run_late(*arguments))

        monkeypatch.setattr(recover, "commit_recovered_states", deferred)
        rig = Rig("none")
        rig.pool.mamba_pool.recover_overlap = gdn_recover_overlap.RecoverOverlap("cpu")
        rig.device = device
        return rig

    yield rig_with_overlap
    override.restore()


def a_round(rig):
    """Verify and commit on slot 5, checkpoint to slot 7; returns the states that must come of it."""
    rig.run([1], [5], window(0, 1))
    overlap = rig.pool.mamba_pool.recover_overlap
    rig.commit([2], ([7], [1]))
    assert rig.device.pending, "the recovery did not go to the side stream"
    pending, rig.device.pending = rig.device.pending, []
    for work in pending:
        state = rig.cache.temporal.clone()
        work()
        want = rig.cache.temporal.clone()
        rig.cache.temporal.copy_(state)
    rig.device.pending = pending
    assert overlap is not None and not torch.equal(state[:, 5], want[:, 5])
    return want


def test_the_next_round_starts_from_the_recovered_state(build):
    rig = build()
    want = a_round(rig)
    rig.run([1], [5], window(1, 1))
    assert torch.equal(rig.cache.temporal, want)


def test_graph_replay_joins_before_its_static_indices_are_rewritten(build):
    rig = build()
    want = a_round(rig)
    with pytest.raises(AttributeError):
        rig.backend.init_forward_metadata_out_graph(types.SimpleNamespace())
    assert torch.equal(rig.cache.temporal, want), "metadata was touched before the join"


def test_copy_on_write_copies_the_recovered_checkpoint(build):
    rig = build()
    want = a_round(rig)
    rig.pool.mamba_pool.copy_from(torch.tensor([7]), torch.tensor([9]))
    assert torch.equal(rig.cache.temporal[:, 9], want[:, 7])


def test_a_cleared_slot_stays_cleared(build):
    rig = build()
    a_round(rig)
    rig.pool.mamba_pool.clear_slots(torch.tensor([5]))
    rig.pool.mamba_pool.recover_overlap.join()
    assert not rig.cache.temporal[:, 5].any()


def test_retraction_takes_the_recovered_state_along(build):
    rig = build()
    want = a_round(rig)
    saved = rig.pool.mamba_pool.get_cpu_copy(torch.tensor([5]))
    assert torch.equal(saved[1][:, 0], want[:, 5])


def test_a_restored_slot_is_not_overwritten_by_a_late_recovery(build):
    rig = build()
    saved = rig.pool.mamba_pool.get_cpu_copy(torch.tensor([3]))
    a_round(rig)
    rig.pool.mamba_pool.load_cpu_copy(saved, torch.tensor([5]))
    rig.pool.mamba_pool.recover_overlap.join()
    assert torch.equal(rig.cache.temporal[:, 5], saved[1][:, 0])


@pytest.mark.parametrize("method", ["backup_from_device_all_layer", "load_to_device_per_layer"])
def test_host_copies_join_before_they_touch_a_buffer(build, method):
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    rig = build()
    want = a_round(rig)
    more = {"layer_id": 0} if method.startswith("load") else {}
    with pytest.raises(AttributeError):  # a host pool without buffers: only what happens first is looked at
        getattr(MambaPoolHost, method)(types.SimpleNamespace(), rig.pool.mamba_pool, None, None, **more)
    assert torch.equal(rig.cache.temporal, want)


def test_without_overlap_nothing_is_deferred(build):
    rig = build()
    rig.pool.mamba_pool.recover_overlap = None
    rig.run([1], [5], window(0, 1))
    rig.commit([2])
    # the stand-in for the commit defers; without a side stream nobody would ever wait for it
    assert len(rig.device.pending) == 1 and rig.device.waits == 0


SETTINGS = dict(
    gdn_mtp_cache_mode="none", enable_int8_mamba_checkpoint=False, enable_unified_cache_external_linker=False
)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (dict(gdn_mtp_cache_mode="full"), "gdn-mtp-cache-mode none"),
        (dict(enable_int8_mamba_checkpoint=True), "int8-mamba-checkpoint"),
        (dict(enable_unified_cache_external_linker=True), "unified-cache-external-linker"),
    ],
    ids=["full", "int8", "linker"],
)
def test_settings_with_readers_that_do_not_join_are_refused(build, changes, names):
    build()
    from sglang.srt.layers.attention.linear.gdn_recover_overlap import validate_gdn_recover_overlap

    validate_gdn_recover_overlap(types.SimpleNamespace(**SETTINGS))
    with pytest.raises(ValueError, match=names):
        validate_gdn_recover_overlap(types.SimpleNamespace(**SETTINGS | changes))


def test_a_metadata_graph_that_is_replayed_without_the_join_is_refused(build, monkeypatch):
    """Once it is captured, upstream's glue graph stands for the metadata call, and with it for the join."""
    build()
    from sglang.srt.layers.attention.linear.gdn_recover_overlap import validate_gdn_recover_overlap

    monkeypatch.setenv("SGLANG_ENABLE_METADATA_GLUE_GRAPH", "1")
    with pytest.raises(ValueError, match="SGLANG_ENABLE_METADATA_GLUE_GRAPH"):
        validate_gdn_recover_overlap(types.SimpleNamespace(**SETTINGS))


def test_a_reader_that_forgets_to_join_is_noticed(build, monkeypatch):
    rig = build()
    want = a_round(rig)
    monkeypatch.setattr(type(rig.pool.mamba_pool.recover_overlap), "join", lambda self: None)
    rig.pool.mamba_pool.copy_from(torch.tensor([7]), torch.tensor([9]))
    assert not torch.equal(rig.cache.temporal[:, 9], want[:, 7])
