"""How many bytes a hybrid model's pools take, before anything is started."""

from sm120.integration.serve.planner.host_tier import HostTier, host_tier
from sm120.integration.serve.planner.pools import Pool, plan
from sm120.integration.serve.planner.settings import HybridModel, ServerSettings
from sm120.integration.serve.planner.slots import SlotReport, slot_report

__all__ = [
    "HostTier",
    "HybridModel",
    "Pool",
    "ServerSettings",
    "SlotReport",
    "host_tier",
    "plan",
    "slot_report",
]
