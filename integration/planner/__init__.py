"""How many bytes a hybrid model's pools take, before anything is started."""

from .commit import CommitPlan, MambaInterval, PageTokens, plan_commit
from .pools import Pool, plan
from .settings import HybridModel, ServerSettings
from .slots import SlotReport, slot_report

__all__ = [
    "CommitPlan",
    "HybridModel",
    "MambaInterval",
    "PageTokens",
    "Pool",
    "ServerSettings",
    "SlotReport",
    "plan",
    "plan_commit",
    "slot_report",
]
