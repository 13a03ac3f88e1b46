"""State slots against tokens: every slot is a prefix that can be kept, and so many tokens less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.capacity import capacity, geometry, number, settings_of, slots_of, token_bytes
from sm120.integration.serve.planner.settings import linear_shape
from sm120.integration.serve.profile import Profile

# A log of an agent's work: 12 slots found 5.4 % of the prompt tokens in the cache and 36 found 95.6 %, with first tokens
# after 16.8 s and 2.5 s. Twelve slots leave no more than the four running requests hold.
ENOUGH_PER_REQUEST = 5


def proposed_slots(profile: Profile) -> int:
    """The rule: what the running requests hold, and as many prefixes again as five for each of them.

    Five are a conversation's own path (system text, tools, and the last turns). With four requests and two tracking
    buffers this is 36, the number with which the published log found nearly every prefix.
    """
    slots = slots_of(profile)
    running = max(1, number(profile, "max-running-requests", 1))
    return running * (slots.held_per_request + ENOUGH_PER_REQUEST)


def slot_trade(profile: Profile, budget: int, config: Mapping[str, Any] | None = None) -> list[str]:
    """What other numbers of slots would cost, in lines; empty where the profile has no states."""
    model, one = geometry(profile, config), settings_of(profile, kv_tokens=1)
    each = linear_shape(model, one).slot_bytes / token_bytes(model, one)
    now, better = slots_of(profile), proposed_slots(profile)
    lines = [f"one slot more costs {each:,.0f} tokens:"]
    for count in sorted({one.mamba_slots, better, 12, 48}):
        other = profile.model_copy(update={"server": {**profile.server, "max-mamba-cache-size": count}})
        try:
            found = capacity(other, budget, config)
        except Refusal as error:
            lines.append(f"  {count:3} slots: {error.what}")
            continue
        mark = " (the profile)" if count == one.mamba_slots else " (the rule)" if count == better else ""
        lines.append(
            f"  {count:3} slots: {found.slots.cap} requests, {found.slots.idle} for prefixes, {found.tokens:,} tokens{mark}"
        )
    if now.slots < better:
        lines.append(f"  --set max-mamba-cache-size={better} follows the rule")
    return lines
