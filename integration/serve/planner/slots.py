"""Mamba slots that are reserved for a request, and those it holds: expected against measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SlotReport:
    """`cap` requests can run; together they hold `held` of the slots, and `idle` ones are left to the prefix cache."""

    slots: int
    reserved_per_request: int
    held_per_request: int
    cap: int
    held: int
    idle: int


def slot_report(
    slots: int,
    *,
    extra_buffer: bool = True,
    overlap: bool = True,
    lazy: bool = False,
    reserved: int | None = None,
    running: int | None = None,
) -> SlotReport:
    """What `slots` mean for concurrency.

    A request reserves 3 slots (its own state, the checkpoint it came from, the one it will leave) and its tracking
    buffers; it holds its own, one locked checkpoint, and the tracking buffers. No more than `running` requests run,
    where that is given. Raises ValueError on fewer than one slot.
    """
    if slots < 1:
        raise ValueError(f"slots is {slots}, needs to be >= 1")
    tracking = 0 if not extra_buffer else 1 if lazy or not overlap else 2
    reserve = 3 + tracking if reserved is None else reserved
    hold = 2 + tracking
    if reserve < hold:
        raise ValueError(f"reserved is {reserve}, needs at least the {hold} slots that a request holds")
    cap = slots // reserve if running is None else min(slots // reserve, running)
    return SlotReport(slots, reserve, hold, cap, cap * hold, slots - cap * hold)
