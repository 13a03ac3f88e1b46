"""How many bytes a hybrid model's pools take, before anything is started."""

from .commit import CommitPlan, MambaInterval, PageTokens, plan_commit
from .host_tier import HostTier, host_tier
from .pools import Pool, plan
from .settings import HybridModel, ServerSettings
from .slots import SlotReport, slot_report

__all__ = [
    "CommitPlan",
    "HostTier",
    "HybridModel",
    "MambaInterval",
    "PageTokens",
    "Pool",
    "ServerSettings",
    "SlotReport",
    "host_tier",
    "plan",
    "plan_commit",
    "slot_report",
]
