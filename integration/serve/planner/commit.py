"""Which state a verify round commits where: the state-commit plan as a pure function.

Two kinds of block size meet in a hybrid: pages of the attention cache and the interval of Mamba checkpoints. Mixing
them up seeds a request from the wrong checkpoint and nothing fails, so here they are different types.
"""

from typing import NamedTuple


class PageTokens(int):
    """Tokens of one page of the attention cache."""


class MambaInterval(int):
    """Tokens between two checkpoints of the recurrent state."""


class CommitPlan(NamedTuple):
    """One request's commit: zero-based steps of the window, -1 where nothing is written.

    `checkpoint_length` is the prefix length that the checkpoint stands for (-1 without one), `length` the new length.
    """

    last_step: int
    track_step: int
    checkpoint_length: int
    length: int


def plan_commit(length: int, accepted: int, drafts: int, interval: MambaInterval, page: PageTokens) -> CommitPlan:
    """Plan the commit of `accepted` tokens (anchor included) of a window of `drafts` after `length` committed tokens.

    The checkpoint is the last multiple of `interval` that the accepted tokens reach: never behind the states already
    committed, never past the accepted ones. Raises ValueError for anything that would break this, for an interval that
    is not a whole number of pages, and for sizes of the wrong kind.
    """
    if not isinstance(interval, MambaInterval):
        raise ValueError(f"interval is a {type(interval).__name__}, needs a MambaInterval")
    if not isinstance(page, PageTokens):
        raise ValueError(f"page is a {type(page).__name__}, needs a PageTokens")
    if page < 1 or interval < 1 or interval % page:
        raise ValueError(f"interval is {interval}, needs a multiple of the page of {page} tokens")
    if length < 0:
        raise ValueError(f"length is {length}, needs to be >= 0")
    if not 1 <= accepted <= drafts:
        raise ValueError(f"accepted is {accepted}, needs 1..{drafts}")
    after = length + accepted
    boundary = after // interval * interval
    if boundary <= length:
        return CommitPlan(accepted - 1, -1, -1, after)
    return CommitPlan(accepted - 1, boundary - length - 1, boundary, after)


def checkpoint_index(length: int, interval: MambaInterval) -> int:
    """Index of the checkpoint that a prefix of `length` tokens starts from, -1 for none."""
    if not isinstance(interval, MambaInterval):
        raise ValueError(f"interval is a {type(interval).__name__}, needs a MambaInterval")
    if length < 0:
        raise ValueError(f"length is {length}, needs to be >= 0")
    return length // interval - 1
