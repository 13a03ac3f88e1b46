"""The rows of a proof: what was asked, whether the tokens are equal, and where the prompt's tokens came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sm120.integration.prove.reference import Verdict
from sm120.integration.prove.server import Reply

TIERS = ("device", "host", "storage")


@dataclass(frozen=True)
class Row:
    """One request of the proof.

    `wanted` says from where the prompt's tokens must have come: "nowhere", one of TIERS (at least one token; what it
    must not touch is every later tier), or None where it does not matter. `accepts` says that drafts must have been
    accepted.
    """

    group: str
    step: str
    verdict: Verdict
    cached: Mapping[str, int]
    seconds: float
    wanted: str | None = None
    accepts: bool = False
    accept_length: float | None = None
    problems: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        problems = []
        if not self.verdict.equal:
            problems.append(f"tokens differ from token {self.verdict.first_difference} on")
        if self.wanted == "nowhere" and any(self.cached.values()):
            problems.append("a cold request found cached tokens")
        if self.wanted in TIERS:
            if not self.cached.get(self.wanted):
                problems.append(f"no token came from {self.wanted}")
            for later in TIERS[TIERS.index(self.wanted) + 1 :]:
                if self.cached.get(later):
                    problems.append(f"tokens came from {later}, beyond {self.wanted}")
        if self.accepts and (self.accept_length or 0) <= 1:
            problems.append("no draft token was accepted")
        object.__setattr__(self, "problems", tuple(problems))

    @property
    def ok(self) -> bool:
        return not self.problems


def row(
    group: str, step: str, reply: Reply, verdict: Verdict, *, wanted: str | None = None, accepts: bool = False
) -> Row:
    """Build a row from what the server replied."""
    return Row(
        group,
        step,
        verdict,
        {tier: reply.cached(tier) for tier in TIERS},
        reply.seconds,
        wanted=wanted,
        accepts=accepts,
        accept_length=reply.accept_length,
    )
