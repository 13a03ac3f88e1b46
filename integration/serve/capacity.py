"""`sm120 plan`: from a GPU's memory to pools and tokens, with the runtime's own order of subtraction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.planner import (
    HostTier,
    HybridModel,
    Pool,
    ServerSettings,
    SlotReport,
    host_tier,
    plan,
    slot_report,
)
from sm120.integration.serve.planner.pools import charged_bytes, kv_bytes_per_token
from sm120.integration.serve.planner.settings import ITEMSIZE
from sm120.integration.serve.profile import Profile

GIB = 1 << 30


@dataclass(frozen=True)
class Capacity:
    """What fits. `budget` is what is left for states and tokens; `left` what a whole page more would not fit into.

    `uncharged` are bytes of pools that the engine allocates without taking them off its budget. `host_tokens` is what
    `hicache-size` would hold if it were all tokens, `host` what upstream makes of it.
    """

    budget: int
    tokens: int
    bytes_per_token: int
    pools: list[Pool]
    slots: SlotReport
    host_tokens: int
    left: int
    uncharged: int
    host: HostTier | None


def geometry(profile: Profile, config: Mapping[str, Any] | None = None) -> HybridModel:
    """The model of `config` (a decoded config.json), else of the profile's own table.

    Raises:
        Refusal: `plan-model` when there is neither or the planner does not know it.
    """
    source = config or profile.planner.model
    if not source:
        raise Refusal("plan-model", f"profile {profile.name} has no geometry of a hybrid", fix="--model config.json")
    try:
        return HybridModel.from_config(source).sharded(number(profile, "tp-size", 1))
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:  # whatever a config.json may hold
        raise Refusal("plan-model", str(error)) from None


def settings_of(profile: Profile, *, kv_tokens: int) -> ServerSettings:
    """The profile's settings in the planner's words. Raises Refusal `plan-settings` for what it does not know.

    As in the server, no more requests run than the state slots allow.
    """
    get, slots = profile.argument, slots_of(profile)
    if slots.cap < 1:
        raise Refusal(
            "plan-settings",
            f"max-mamba-cache-size is {slots.slots}, one request reserves {slots.reserved_per_request} slots",
        )
    # what SGLang takes for "auto" is of two bytes for every model, as bfloat16 is
    kinds = {"auto": "bfloat16", "bf16": "bfloat16", "half": "float16", "float": "float32"}
    kv, model = str(get("kv-cache-dtype", "auto")), str(get("dtype", "auto"))
    try:
        return ServerSettings(
            max_running=min(number(profile, "max-running-requests", 1), slots.cap),
            mamba_slots=slots.slots,
            kv_tokens=kv_tokens,
            page_size=number(profile, "page-size", 1),
            draft_tokens=number(profile, "speculative-num-draft-tokens", 0) if get("speculative-algorithm") else 0,
            cache_mode=str(get("gdn-mtp-cache-mode", "full")),
            kv_dtype=kinds.get(kv, kv),
            state_dtype=str(get("mamba-ssm-dtype", "float32")),
            conv_dtype=profile.environment.get("SGLANG_MAMBA_CONV_DTYPE", "bfloat16"),
            model_dtype=kinds.get(model, model),
            draft_kv_layers=profile.planner.draft_kv_layers,
            draft_kv_heads=_share(profile.planner.draft_kv_heads, number(profile, "tp-size", 1)),
            draft_head_dim=profile.planner.draft_head_dim,
        )
    except (ValueError, TypeError) as error:
        raise Refusal("plan-settings", str(error)) from None


def number(profile: Profile, name: str, default: int) -> int:
    """A server argument as a whole number. Raises Refusal `plan-settings` for what is none."""
    value = profile.argument(name, default)
    try:
        return int(value)
    except (ValueError, TypeError, OverflowError):
        raise Refusal("plan-settings", f"{name} is {value!r}, must be a number", fix=f"--set {name}=NUMBER") from None


def slots_of(profile: Profile) -> SlotReport:
    """What the profile's state slots mean. Raises Refusal `plan-settings` where their number is left to the server."""
    get = profile.argument
    count, strategy = get("max-mamba-cache-size"), str(get("mamba-radix-cache-strategy", ""))
    if not isinstance(count, int) or count < 1:
        raise Refusal("plan-settings", f"max-mamba-cache-size is {count!r}, must be a number of slots, 1 or more")
    return slot_report(
        count,
        extra_buffer=strategy.startswith("extra_buffer"),
        overlap=not get("disable-overlap-schedule", False),
        lazy=strategy == "extra_buffer_lazy",
        running=None if get("max-running-requests") is None else max(1, number(profile, "max-running-requests", 1)),
    )


def pools_of(model: HybridModel, settings: ServerSettings) -> list[Pool]:
    """Every pool. Raises Refusal `plan-settings` where the settings do not fit the model."""
    try:
        return plan(model, settings)
    except ValueError as error:
        raise Refusal("plan-settings", str(error)) from None


def token_bytes(model: HybridModel, settings: ServerSettings) -> int:
    """Bytes of one cached token with its draft's share."""
    draft = 2 * settings.draft_kv_layers * settings.draft_kv_heads * settings.draft_head_dim
    try:
        return kv_bytes_per_token(model, settings) + draft * ITEMSIZE[settings.kv_dtype]
    except ValueError as error:
        raise Refusal("plan-settings", str(error)) from None


def budget_left(gpu_bytes: int, weights: int, static_fraction: float, other: int = 0) -> int:
    """What SGLang leaves for pools: free memory after the weights, less the part that is not static.

    Raises:
        Refusal: `plan-settings` for a fraction outside (0, 1]; `plan-memory` when nothing is left.
    """
    if not 0 < static_fraction <= 1:
        raise Refusal("plan-settings", f"static fraction is {static_fraction}, must be in (0, 1]")
    left = int(gpu_bytes * static_fraction) - weights - other
    if left <= 0:
        raise Refusal(
            "plan-memory",
            f"{gpu_bytes / GIB:.2f} GiB x {static_fraction} - {weights / GIB:.2f} GiB of weights - "
            f"{other / GIB:.2f} GiB leaves nothing",
        )
    return left


def capacity(profile: Profile, budget: int, config: Mapping[str, Any] | None = None) -> Capacity:
    """How many tokens, in whole pages, fit into `budget` bytes beside the states.

    Raises:
        Refusal: `plan-memory` when not even one page fits.
    """
    model = geometry(profile, config)
    one = settings_of(profile, kv_tokens=1)
    page, each = one.page_size, token_bytes(model, one)
    fixed = charged_of(model, one)
    tokens = (budget - fixed) // each
    limit = profile.argument("max-total-tokens")
    if limit is not None:
        tokens = min(tokens, number(profile, "max-total-tokens", 0))
    tokens = tokens // page * page
    if tokens < page:
        raise Refusal(
            "plan-memory", f"{fixed / GIB:.2f} GiB of states and scratch do not fit into {budget / GIB:.2f} GiB"
        )
    settings = settings_of(profile, kv_tokens=tokens)
    pools = pools_of(model, settings)
    most = number(profile, "hicache-size", 0) * 10**9 // kv_bytes_per_token(model, settings) // page * page
    left = budget - fixed - tokens * each
    uncharged = sum(pool.bytes for pool in pools) - fixed - tokens * each
    host = host_of(profile, model, settings)
    return Capacity(budget, tokens, each, pools, slots_of(profile), most, left, uncharged, host)


def charged_of(model: HybridModel, settings: ServerSettings) -> int:
    """What the engine takes off its budget before tokens. Raises Refusal `plan-settings` where the two do not fit."""
    try:
        return charged_bytes(model, settings)
    except ValueError as error:
        raise Refusal("plan-settings", str(error)) from None


def host_of(profile: Profile, model: HybridModel, settings: ServerSettings) -> HostTier | None:
    """The host pools of the profile's settings, None without a hierarchy."""
    if not profile.argument("enable-hierarchical-cache"):
        return None
    ratio = profile.argument("hicache-ratio", 2.0)
    try:
        size, ratio = float(profile.argument("hicache-size", 0)), float(ratio)
    except (ValueError, TypeError):
        raise Refusal("plan-settings", "hicache-size and hicache-ratio must be numbers") from None
    return host_tier(model, settings, size_gb=size, ratio=ratio)


def _share(heads: int, ranks: int) -> int:
    return max(1, heads // ranks) if heads and ranks > 0 else heads


def read_config(path: Path) -> dict[str, Any]:
    """A decoded config.json. Raises Refusal `plan-model` naming the file."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise Refusal("plan-model", f"not a readable config.json: {error}", path=file) from None
    if not isinstance(config, dict):
        raise Refusal("plan-model", "not a JSON object", path=file)
    return config
