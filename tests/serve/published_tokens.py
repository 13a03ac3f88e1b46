"""Sizes of token pools that others published, and the bytes that explain them.

An absolute count needs the memory that the weights left, which nobody published. What the formulas can be held to is
the step between two counts of one report:

    tokens × bytes per token + state slots × bytes per slot + draft rows  =  fraction × memory free before loading

on both sides the weights and everything else that was resident are the same and fall out. The memory that was free
before loading is the one unknown of both reports, which name the same card: the first pair gives it, the second is
predicted with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sm120.integration.serve.capacity import capacity, charged_of, geometry, settings_of, token_bytes
from sm120.integration.serve.planner.settings import linear_shape
from sm120.integration.serve.profile import load_profile

MIB = 1 << 20
# Of the card, as its driver tells: no start can have had more.
CARD = 97_887 * MIB


@dataclass(frozen=True)
class Start:
    """One start as it was reported. `settings` are what differs from the profile of today."""

    tokens: int
    fraction: float
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two starts of one report; `given` says what of them was published and what not."""

    profile: str
    before: Start
    after: Start
    given: str


PAIRS = (
    Pair(
        "flash-next",
        Start(745_600, 0.97, ("gdn-mtp-cache-mode=full",)),
        Start(824_384, 0.981, ("gdn-mtp-cache-mode=none",)),
        "published: slots, mode and both fractions. The report's estimator went on charging the states that mode none "
        "does not keep; raising the fraction took their memory back",
    ),
    Pair(
        "qwen38-27b-dflash2",
        Start(1_118_784, 0.92),
        Start(1_194_496, 0.94, ("max-mamba-cache-size=16", "mamba-radix-cache-strategy=extra_buffer_lazy")),
        "published: slots, states per path (5, then 3) and the fraction 0.94. Not published: the fraction of the "
        "start with 24 slots",
    ),
)


@dataclass(frozen=True)
class Ledger:
    """From the first start to the second. Draft rows are charged as upstream's estimator does, whole slots kept or not."""

    pair: Pair
    bytes_per_token: int
    tokens: int
    slot_bytes: int
    slots: int
    draft_slots: int

    @property
    def beside(self) -> int:
        """Bytes of all that is not tokens."""
        return (self.slots + self.draft_slots) * self.slot_bytes

    @property
    def budget(self) -> int:
        """The sum, in bytes, which the fraction has to bring."""
        return self.tokens * self.bytes_per_token + self.beside

    @property
    def thousandths(self) -> int:
        """By how much the fraction rose, of a thousand."""
        return round(1000 * (self.pair.after.fraction - self.pair.before.fraction))

    def brought(self, free: int) -> int:
        """Bytes that the fraction brings of `free` ones."""
        return self.thousandths * free // 1000


def ledger(pair: Pair) -> Ledger:
    """What the step of a pair costs, from the planner's sizes."""
    before, after = (load_profile(pair.profile, list(start.settings)) for start in (pair.before, pair.after))
    model, old, new = geometry(before), settings_of(before, kv_tokens=1), settings_of(after, kv_tokens=1)
    return Ledger(
        pair,
        bytes_per_token=token_bytes(model, old),
        tokens=pair.after.tokens - pair.before.tokens,
        slot_bytes=linear_shape(model, old).slot_bytes,
        slots=new.mamba_slots - old.mamba_slots,
        draft_slots=(new.max_running - old.max_running) * old.draft_tokens,
    )


def free_before_loading() -> int:
    """The memory that the first pair says was free before loading: its budget over its step of the fraction."""
    first = ledger(PAIRS[0])
    return -(-first.budget * 1000 // first.thousandths)


def predicted(pair: Pair) -> int:
    """Tokens of the second start, in whole pages, from the first and from the memory of the first pair."""
    entries = ledger(pair)
    page = int(load_profile(pair.profile).argument("page-size"))
    room = entries.brought(free_before_loading()) - entries.beside
    return (pair.before.tokens + room // entries.bytes_per_token) // page * page


def missing_fraction() -> float:
    """The fraction of the 24-slot start that would leave nothing over; its report does not say it."""
    entries = ledger(PAIRS[1])
    return PAIRS[1].after.fraction - entries.budget / free_before_loading()


def planned_here() -> int:
    """Flash-Next's second count as this runtime gives it: its estimator frees what mode none does not keep by itself."""
    pair = PAIRS[0]
    full, none = (load_profile(pair.profile, list(start.settings)) for start in (pair.before, pair.after))
    model, kept = geometry(full), settings_of(full, kv_tokens=pair.before.tokens)
    budget = charged_of(model, kept) + pair.before.tokens * token_bytes(model, kept)
    return capacity(none, budget).tokens
