"""Commits never go backward, never mix block sizes, and leave the next round the state it needs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sm120.integration.serve.planner import MambaInterval, PageTokens, plan_commit
from sm120.integration.serve.planner.commit import checkpoint_index

PAGE, INTERVAL = PageTokens(64), MambaInterval(128)
WINDOWS = st.integers(1, 16).flatmap(lambda drafts: st.tuples(st.just(drafts), st.integers(1, drafts)))


@settings(deadline=None)
@given(length=st.integers(0, 200_000), window=WINDOWS, pages=st.integers(1, 40))
def test_a_checkpoint_is_ahead_of_the_old_length_and_inside_the_new_one(length, window, pages):
    drafts, accepted = window
    interval = MambaInterval(pages * PAGE)
    plan = plan_commit(length, accepted, drafts, interval, PAGE)
    assert plan.length == length + accepted and plan.last_step == accepted - 1
    if plan.track_step == -1:
        assert plan.checkpoint_length == -1
        assert all(n % interval for n in range(length + 1, plan.length + 1))
    else:
        assert length < plan.checkpoint_length <= plan.length
        assert plan.checkpoint_length % interval == 0
        assert 0 <= plan.track_step <= plan.last_step, "a checkpoint past the accepted tokens"
        assert plan.checkpoint_length == length + plan.track_step + 1


def test_a_block_boundary_is_not_a_reason_to_copy_backward():
    """7998 tokens computed, 3 scheduled, 2 accepted, blocks of 1600: the state moves on to 8000, not back to 6400."""
    plan = plan_commit(7998, 2, 3, MambaInterval(1600), PageTokens(16))
    assert plan.checkpoint_length == 8000 and plan.track_step == plan.last_step == 1
    unaligned = plan_commit(7997, 2, 3, MambaInterval(1600), PageTokens(16))
    assert unaligned.checkpoint_length == -1


def test_the_interval_of_the_attention_cache_is_refused():
    """Seeding from blocks of 128 where checkpoints are 2176 apart reads checkpoint 780 where there are 46."""
    assert (100_096 - 1) // 128 == 781 and (100_096 - 1) // 2176 == 45
    assert checkpoint_index(100_096, MambaInterval(2176)) == 45
    for wrong in (128, PageTokens(128)):
        with pytest.raises(ValueError, match="needs a MambaInterval"):
            checkpoint_index(100_096, wrong)
        with pytest.raises(ValueError, match="needs a MambaInterval"):
            plan_commit(0, 1, 4, wrong, PAGE)
    with pytest.raises(ValueError, match="needs a PageTokens"):
        plan_commit(0, 1, 4, INTERVAL, MambaInterval(64))


@pytest.mark.parametrize(
    ("length", "accepted", "interval", "says"),
    [
        (0, 0, INTERVAL, "accepted is 0"),
        (0, 5, INTERVAL, "accepted is 5"),
        (-1, 1, INTERVAL, "length is -1"),
        (0, 1, MambaInterval(100), "multiple of the page"),
    ],
    ids=["nothing", "too_much", "negative", "half_pages"],
)
def test_impossible_commits_are_refused(length, accepted, interval, says):
    with pytest.raises(ValueError, match=says):
        plan_commit(length, accepted, 4, interval, PAGE)


class Commits(RuleBasedStateMachine):
    """A state is the history it has seen. Plans drive slots; a naive model replays every token."""

    DRAFTS = 4
    PAGE, INTERVAL = PageTokens(2), MambaInterval(4)

    def __init__(self):
        super().__init__()
        self.tokens: tuple[int, ...] = ()
        self.working: tuple[int, ...] = ()
        self.checkpoints: dict[int, tuple[int, ...]] = {}
        self.next = 0

    def step(self, accepted: int, drafts: int) -> None:
        window = tuple(range(self.next, self.next + drafts))
        self.next += drafts
        states = [self.working + window[: i + 1] for i in range(drafts)]
        plan = plan_commit(len(self.tokens), accepted, drafts, self.INTERVAL, self.PAGE)
        if plan.track_step >= 0:
            self.checkpoints[plan.checkpoint_length] = states[plan.track_step]
        self.working = states[plan.last_step]
        self.tokens += window[:accepted]

    @rule(accepted=st.integers(1, DRAFTS))
    def verify(self, accepted):
        self.step(accepted, self.DRAFTS)

    @rule()
    def decode_without_drafts(self):
        self.step(1, 1)

    @precondition(lambda self: self.checkpoints)
    @rule(data=st.data())
    def restore_a_prefix(self, data):
        length = data.draw(st.sampled_from(sorted(self.checkpoints)))
        self.tokens, self.working = self.tokens[:length], self.checkpoints[length]
        self.checkpoints = {n: s for n, s in self.checkpoints.items() if n <= length}

    @invariant()
    def the_working_state_has_seen_exactly_the_tokens(self):
        assert self.working == self.tokens

    @invariant()
    def every_checkpoint_is_the_prefix_of_its_length(self):
        for length, state in self.checkpoints.items():
            assert state == self.tokens[:length]


TestCommits = Commits.TestCase
TestCommits.settings = settings(deadline=None)
