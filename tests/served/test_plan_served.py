"""The planner against engines that were started: tokens, and the host's tokens and states, to the last one.

One start runs by default, the rest is marked long. `-s` prints the table of docs/operator.md.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sm120.integration.build import models
from sm120.integration.prove import recipes
from sm120.integration.prove.server import Server
from sm120.integration.serve.planner import HybridModel, ServerSettings, host_tier
from sm120.integration.serve.planner.pools import charged_bytes, kv_bytes_per_token
from sm120.integration.serve.startup.startup_lines import read

pytestmark = [pytest.mark.served, pytest.mark.timeout(900)]

HOOK = Path(__file__).parent / "plan_hooks" / "fixed_memory.py"
GIB = 1 << 30
FRACTION, RUNNING, SLOTS, PAGE = 0.26, 2, 12, 64
# As in Flash-Next's own configuration.
MTP = dict(mtp_num_hidden_layers=1)
LINEAR = dict(**MTP, linear_key_head_dim=64, linear_value_head_dim=64, linear_num_key_heads=1, linear_num_value_heads=2)
MODELS = {
    "4 layers": replace(models.HYBRID, config=MTP),
    "wide heads": replace(models.HYBRID, config=LINEAR),
    "8 layers": replace(models.HYBRID, config={**LINEAR, "num_hidden_layers": 8, "num_key_value_heads": 4}),
}


@dataclass(frozen=True)
class Case:
    model: str
    mode: str
    drafts: int
    state: str
    hicache: bool

    def __str__(self):
        return f"{self.model}, {self.mode}, D {self.drafts}, {self.state}{', HiCache' if self.hicache else ''}"


SHORT = [Case("wide heads", "none", 4, "float32", True)]
LONG = [
    Case("wide heads", "full", 4, "float32", True),
    Case("4 layers", "full", 2, "float32", False),
    Case("wide heads", "none", 8, "bfloat16", True),
    Case("wide heads", "full", 8, "bfloat16", False),
    Case("8 layers", "none", 2, "bfloat16", False),
    Case("8 layers", "full", 4, "bfloat16", True),
    Case("8 layers", "none", 8, "float32", True),
]


@pytest.mark.parametrize("case", [*SHORT, *(pytest.param(case, marks=pytest.mark.long) for case in LONG)], ids=str)
def test_a_started_engine_has_what_was_planned(case, runtime, work):
    folder = models.make(runtime, MODELS[case.model], work / "models")
    arguments = {
        **recipes.HYBRID_PAGED,
        **recipes.nextn(),
        "max-running-requests": RUNNING,
        "max-mamba-cache-size": SLOTS,
        "mem-fraction-static": FRACTION,
        "mamba-ssm-dtype": case.state,
        "gdn-mtp-cache-mode": case.mode,
        # For Flash-Next the server says so itself; without it a text model's draft layer is made and not charged.
        "speculative-draft-model-path": str(folder),
        "speculative-num-steps": case.drafts - 1,
        "speculative-num-draft-tokens": case.drafts,
    }
    del arguments["max-total-tokens"]
    if case.hicache:
        arguments |= {
            "enable-hierarchical-cache": True,
            "hicache-size": 1,
            "hicache-io-backend": "direct",
            "hicache-mem-layout": "page_first_direct",
            "hicache-write-policy": "write_through",
        }
    log = work / "plan" / f"{str(case).replace(' ', '-').replace(',', '')}.log"
    with Server(runtime, folder, arguments, log=log, environment=recipes.HYBRID_ENVIRONMENT, hooks=[HOOK]):
        pass
    said = read(log.read_text())
    model = HybridModel.from_config(json.loads((folder / "config.json").read_text()))
    settings = ServerSettings(
        max_running=RUNNING,
        mamba_slots=SLOTS,
        kv_tokens=1,
        page_size=PAGE,
        draft_tokens=case.drafts,
        cache_mode=case.mode,
        kv_dtype="float16",
        state_dtype=case.state,
        conv_dtype="float16",
        model_dtype="float16",
    )
    budget = int((3.0 - 4.0 * (1 - FRACTION)) * GIB)
    planned = (budget - charged_bytes(model, settings)) // kv_bytes_per_token(model, settings) // PAGE * PAGE
    found = int(said["totals"][-1]["tokens"])
    host = host_tier(model, replace(settings, kv_tokens=planned), size_gb=1)
    kept = (int(said["host_kv"][0]["tokens"]), int(said["host_states"][0]["states"])) if case.hicache else None
    print(f"| {case} | {planned:,} | {found:,} | {(host.tokens, host.states) if kept else ''} | {kept or ''} |")
    assert found == planned
    assert kept is None or kept == (host.tokens, host.states)
    assert int(said["totals"][-1]["running"]) == RUNNING
