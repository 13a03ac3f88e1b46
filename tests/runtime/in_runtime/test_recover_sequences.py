"""Sequences of verify, commit, decode and slot traffic on the runtime's own pool and backend, against a naive model.

Runs inside the patched runtime (see tests/runtime/test_recover_ssm.py); the rig is the probe's.
"""

import importlib.util
import types
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context

ROOT = Path(__file__).parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rig = load(ROOT / "probes" / "sglang" / "gdn_rig.py")
NaiveSlot = load(Path(__file__).parent / "naive_gdn.py").NaiveSlot
Rig, window, DRAFTS = rig.Rig, rig.window, rig.DRAFTS
PADDING = 0
# fp16 convolution outputs round differently from float64's in the last bit
TOLERANCE = 2e-3


@pytest.fixture(autouse=True)
def runtime():
    override = get_context().override_server_args(
        speculative_eagle_topk=1, speculative_num_draft_tokens=DRAFTS, attention_backend="triton"
    )
    override.install()
    yield
    override.restore()


def relative(got, want):
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm().clamp_min(1e-3))


class Driver:
    """The rig without per-draft states, and a naive twin of every slot that something lives in."""

    def __init__(self):
        self.rig = Rig("none")
        self.naive: dict[int, NaiveSlot] = {}
        self.seed = 100

    def adopt(self, slot):
        cache = self.rig.cache
        self.naive[slot] = NaiveSlot(cache.conv[0][:, slot].double().transpose(1, 2), cache.temporal[:, slot].double())

    def tokens(self, rows, drafts=DRAFTS):
        self.seed += 1
        return window(self.seed, rows, drafts)

    def verify_and_commit(self, slots, accepted, track=None):
        """One round for the requests in `slots`; the twins see only what was accepted."""
        inputs = self.tokens(len(slots))
        before = self.snapshot()
        outputs = self.rig.run(list(range(1, len(slots) + 1)), slots, inputs)
        self.rig.commit([n - 1 for n in accepted], track)
        for row, (slot, count) in enumerate(zip(slots, accepted, strict=True)):
            tokens = [tuple(x[row * DRAFTS : (row + 1) * DRAFTS] for x in layer) for layer in inputs]
            said = self.naive[slot].copy().advance(self.rig.layers, tokens)
            for got, want in zip(outputs, said, strict=True):
                got = got.view(len(slots), DRAFTS, *got.shape[-2:])[row]
                assert relative(got, want) < TOLERANCE, "an output of the window"
            if track and track[1][row] >= 0:
                checkpoint = self.naive[slot].copy()
                checkpoint.advance(self.rig.layers, [tuple(x[: track[1][row] + 1] for x in t) for t in tokens])
                self.naive[track[0][row]] = checkpoint
            self.naive[slot].advance(self.rig.layers, [tuple(x[:count] for x in t) for t in tokens])
        named = set(slots) | {s for s, n in zip(*track, strict=True) if n >= 0} if track else set(slots)
        self.unnamed_is_bit_equal(before, named)

    def decode(self, slot):
        """A step without drafts: the runtime's decode kernel continues from what was committed."""
        inputs = self.tokens(1, 1)
        before = self.snapshot()
        self.rig.pool.req_index_to_mamba_index_mapping[1] = slot
        batch = types.SimpleNamespace(
            batch_size=1,
            forward_mode=ForwardMode.DECODE,
            logical_forward_mode=ForwardMode.DECODE,
            req_pool_indices=torch.tensor([1]),
            input_ids=torch.zeros(1, dtype=torch.int64),
            spec_info=None,
            mamba_track_indices=None,
            mamba_track_mask=None,
            mamba_prefill_track_mask_cpu=None,
            multi_item_delimiter_indices=None,
            seq_lens_cpu=None,
        )
        self.rig.backend.init_forward_metadata(batch)
        for layer, (qkv, a, b) in zip(self.rig.layers, inputs, strict=True):
            self.rig.backend.forward_decode(layer, batch, qkv.clone(), a, b)
        self.naive[slot].advance(self.rig.layers, inputs)
        self.unnamed_is_bit_equal(before, {slot})

    def snapshot(self):
        return self.rig.cache.temporal.clone(), self.rig.cache.conv[0].clone()

    def unnamed_is_bit_equal(self, before, named):
        for was, now in zip(before, (self.rig.cache.temporal, self.rig.cache.conv[0]), strict=True):
            for slot in set(range(was.shape[1])) - named - {PADDING}:
                assert torch.equal(was[:, slot], now[:, slot]), f"slot {slot} was not named and changed"

    def agree(self):
        cache = self.rig.cache
        for slot, twin in self.naive.items():
            assert relative(cache.temporal[:, slot], twin.state) < TOLERANCE, f"state of slot {slot}"
            conv = cache.conv[0][:, slot].transpose(1, 2)
            assert torch.equal(conv.double(), twin.conv), f"conv window of slot {slot}"


@pytest.mark.parametrize("accepted", range(1, DRAFTS + 1))
def test_every_accepted_length_then_a_step_without_drafts(accepted):
    """A draft-less step after accepted drafts must start from the accepted state, not from the window's first."""
    driver = Driver()
    driver.adopt(5)
    driver.verify_and_commit([5], [accepted])
    driver.agree()
    driver.decode(5)
    driver.agree()
    driver.verify_and_commit([5], [1])
    driver.agree()


@pytest.mark.parametrize("length", [63, 64, 65])
def test_mixed_acceptance_and_the_checkpoint_at_64(length):
    """Steps come from the runtime's own index arithmetic."""
    from sglang.srt.speculative import spec_utils

    driver = Driver()
    slots, accepted = [5, 2], [1, 4]
    for slot in slots:
        driver.adopt(slot)
    batch = types.SimpleNamespace(
        seq_lens=torch.tensor([length, length]),
        mamba_track_indices=torch.tensor([7, 8]),
        tree_cache=types.SimpleNamespace(page_size=64),
    )
    lens = torch.tensor(accepted)
    index = torch.arange(2 * DRAFTS).view(2, DRAFTS)
    index[torch.arange(DRAFTS)[None] >= lens[:, None]] = -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec_utils, "mamba_track_grid", lambda page: 64)
        last, track = spec_utils._verify_commit_step_indices(
            batch=batch, accept_index=index, accept_lens=lens, draft_token_num=DRAFTS
        )
    assert last.tolist() == [0, 3]
    crosses = lambda n: length // 64 != (length + n) // 64  # noqa: E731
    assert [step >= 0 for step in track.tolist()] == [crosses(n) for n in accepted]
    driver.verify_and_commit(slots, accepted, ([7, 8], track.tolist()))
    driver.agree()


def test_padding_rows_use_the_padding_slot_and_nothing_else():
    driver = Driver()
    driver.adopt(5)
    before = driver.snapshot()
    inputs = driver.tokens(3)
    driver.rig.run([1, 0, 0], [5, PADDING, PADDING], inputs)
    driver.rig.commit([2])  # the batch that commits is the real one
    tokens = [tuple(x[:3] for x in layer) for layer in inputs]
    driver.naive[5].advance(driver.rig.layers, tokens)
    driver.agree()
    driver.unnamed_is_bit_equal(before, {5})


def test_ple_side_states_commit_after_the_states_and_a_skipped_commit_is_noticed(monkeypatch):
    rig = Rig("none")
    short = types.SimpleNamespace(
        conv_state=torch.zeros(1, 13, 3, 2), intermediate_conv_state=torch.arange(1.0, 121).view(1, 5, 4, 3, 2)
    )
    ngram = types.SimpleNamespace(
        context=torch.zeros(13, 2, dtype=torch.int64), intermediate_context=torch.arange(1, 41).view(5, 4, 2)
    )
    rig.pool.short_conv_pool, rig.pool.ngram_pool = short, ngram

    def committed():
        rig.run([1, 2], [5, 3], window(0, 2))
        rig.commit([2, 0], ([7, 8], [1, -1]))
        want = short.intermediate_conv_state
        return (
            torch.equal(short.conv_state[:, 5], want[:, 0, 2])
            and torch.equal(short.conv_state[:, 3], want[:, 1, 0])
            and torch.equal(short.conv_state[:, 7], want[:, 0, 1])
            and torch.equal(ngram.context[5], ngram.intermediate_context[0, 2])
            and not short.conv_state[:, 8].any()
        )

    assert committed()
    short.conv_state.zero_(), ngram.context.zero_()
    monkeypatch.setattr(type(rig.hybrid), "_update_ple_state_after_mtp_verify", lambda *a, **k: None)
    assert not committed()


class Traffic(RuleBasedStateMachine):
    """Requests come, verify, decode, are retracted and restored, and start from each other's checkpoints."""

    def __init__(self):
        super().__init__()
        self.driver = Driver()
        self.live: list[int] = []
        self.checkpoints: list[int] = []
        self.away: list[tuple[object, NaiveSlot]] = []
        self.free = list(range(1, 12))

    @property
    def pool(self):
        return self.driver.rig.pool.mamba_pool

    @precondition(lambda self: self.free and len(self.live) < 2)
    @rule(data=st.data())
    def start(self, data):
        slot = self.free.pop()
        source = data.draw(st.sampled_from([None, *self.checkpoints]))
        if source is None:
            self.pool.clear_slots(torch.tensor([slot]))
            self.driver.adopt(slot)
        else:
            self.pool.copy_from(torch.tensor([source]), torch.tensor([slot]))
            self.driver.naive[slot] = self.driver.naive[source].copy()
        self.live.append(slot)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def verify(self, data):
        accepted = [data.draw(st.integers(1, DRAFTS)) for _ in self.live]
        track = None
        if len(self.free) >= len(self.live) and data.draw(st.booleans()):
            slots = [self.free[i] for i in range(len(self.live))]
            steps = [data.draw(st.integers(-1, n - 1)) for n in accepted]
            track = (slots, steps)
            for slot, step in zip(slots, steps, strict=True):
                if step >= 0:
                    self.free.remove(slot)
                    self.checkpoints.append(slot)
        self.driver.verify_and_commit(list(self.live), accepted, track)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def decode(self, data):
        self.driver.decode(data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: self.live)
    @rule()
    def retract(self):
        slot = self.live.pop()
        self.away.append((self.pool.get_cpu_copy(torch.tensor([slot])), self.driver.naive.pop(slot)))
        self.pool.clear_slots(torch.tensor([slot]))
        self.free.append(slot)

    @precondition(lambda self: self.away and self.free and len(self.live) < 2)
    @rule()
    def restore(self):
        copy, twin = self.away.pop()
        slot = self.free.pop(0)
        self.pool.load_cpu_copy(copy, torch.tensor([slot]))
        self.driver.naive[slot] = twin
        self.live.append(slot)

    @invariant()
    def every_slot_is_what_its_tokens_make_it(self):
        self.driver.agree()


def test_traffic():
    run_state_machine_as_test(
        Traffic,
        settings=settings(
            max_examples=6,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    "fault", ["one_step_too_far", "checkpoint_after_advance", "conv_off_by_one", "commits_the_first_column"]
)
def test_the_sequences_notice_a_wrong_commit(monkeypatch, fault):
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid
    from sglang.srt.layers.attention.linear import gdn_recover_state as recover

    commit, scatter = recover.commit_recovered_states, hybrid.scatter_mamba_states_after_mtp_verify

    def too_far(state, window_, indices, last, *rest):
        commit(state, window_, indices, last + 1, *rest)

    def after_advance(state, window_, indices, last, track, steps, rows):
        commit(state, window_, indices, last, None, None, rows)
        commit(state, window_, indices, last * 0 - 1, track, steps, rows)

    def first_column(state, window_, indices, last, *rest):
        commit(state, window_, indices, last * 0, *rest)

    def conv(caches, indices, last, *rest, **more):
        scatter(caches, indices, last - 1, *rest, **more)

    if fault == "conv_off_by_one":
        monkeypatch.setattr(hybrid, "scatter_mamba_states_after_mtp_verify", conv)
    else:
        wrong = dict(
            one_step_too_far=too_far, checkpoint_after_advance=after_advance, commits_the_first_column=first_column
        )
        monkeypatch.setattr(recover, "commit_recovered_states", wrong[fault])
    driver = Driver()
    driver.adopt(5)
    with pytest.raises(AssertionError, match="slot"):
        driver.verify_and_commit([5], [3], ([7], [1]))
        driver.agree()
