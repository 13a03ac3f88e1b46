"""Published sizes of token pools, and what of them the planner can say.

An absolute count needs the memory that was free after loading, which nobody published. What the formulas can be held
to is the step between two counts of one machine: the first is turned into a budget, the second predicted from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .capacity import budget_of, capacity, geometry, settings_of
from .profile import load_profile


@dataclass(frozen=True)
class Published:
    """Two counts reported by others, before and after the per-draft states went away."""

    profile: str
    before: int
    after: int
    standing: str


PUBLISHED = (
    Published(
        "flash-next", 745_600, 824_384, "the conditions are known: cache mode full, then none; nothing else moved"
    ),
    Published(
        "flash-next",
        1_118_784,
        1_194_496,
        "conditions not published; read as the same step on a larger budget, which fits. As 27B/DFlash2 the step would "
        "be 5.6 GiB and the second count 9 % higher, so it is not that",
    ),
)


@dataclass(frozen=True)
class Reproduction:
    """`off` is (predicted − published) / published; `step_off` the same of the difference of the two counts."""

    published: Published
    budget: int
    predicted: int
    off: float
    step_off: float


def reproduce(published: Published) -> Reproduction:
    """Take the budget out of the first count and predict the second."""
    full = load_profile(published.profile, ["gdn-mtp-cache-mode=full"])
    none = load_profile(published.profile, ["gdn-mtp-cache-mode=none"])
    budget = budget_of(geometry(full), settings_of(full, kv_tokens=published.before))
    predicted = capacity(none, budget).tokens
    step = published.after - published.before
    off = (predicted - published.after) / published.after
    return Reproduction(published, budget, predicted, off, (predicted - published.before - step) / step)
