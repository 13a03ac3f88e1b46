"""The estimator must charge, byte for byte, the speculative state that the pool then allocates."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import contextlib
import types

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache import kv_cache_configurator as module
from sglang.srt.mem_cache.memory_pool import MambaPool, get_tensor_size_bytes

GIB = 1 << 30
RUNNING, SLOTS, RATIO = 4, 24, 5


def params(temporal=torch.float32):
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=4 * 64, n_groups=2, num_heads=4, head_dim=64, state_size=64, conv_kernel=4
    )
    return Mamba2CacheParams(
        shape=shape, layers=[0, 1, 2], dtype=Mamba2StateDType(conv=torch.float16, temporal=temporal)
    )


def charged(monkeypatch, cache_params, *, draft=4, widest=None, replay=False, slots=SLOTS, topk=1, budget=8 * GIB):
    """Bytes the real estimator takes from the budget, and the slots it settles on."""
    schedule = types.SimpleNamespace(
        max_running_requests=RUNNING, max_mamba_cache_size=slots, mamba_full_memory_ratio=0.25
    )
    spec = types.SimpleNamespace(
        speculative_num_draft_tokens=draft, max_speculative_num_draft_tokens=widest, speculative_eagle_topk=topk
    )
    execution = types.SimpleNamespace(
        mamba=types.SimpleNamespace(
            enable_linear_replayssm_spec=replay, linear_replayssm_cache_len=16, gdn_mtp_cache_mode="full"
        )
    )
    memory = types.SimpleNamespace(disable_radix_cache=False, enable_unified_memory=False)
    disagg = types.SimpleNamespace(disaggregation_mode="null", enable_pd_role_switch=False)

    def override(_reason, **fields):
        for name, value in fields.items():
            setattr(schedule, name, value)

    for name, value in dict(
        get_schedule=schedule,
        get_spec=spec,
        get_exec=execution,
        get_memory=memory,
        get_disagg=disagg,
        get_context=types.SimpleNamespace(override=override),
    ).items():
        monkeypatch.setattr(module, name, lambda value=value: value)
    bound = max(x for x in (draft, widest) if x is not None)
    monkeypatch.setattr(module, "max_speculative_num_draft_tokens", lambda: bound)

    configurator = object.__new__(module.KVCacheConfigurator)
    fields = dict(
        mambaish_config=types.SimpleNamespace(mamba2_cache_params=cache_params),
        hybrid_gdn_config=object(),
        hybrid_kda_config=None,
        pp_size=1,
        attn_dp_size=1,
        extra_mamba_cache_bytes_per_req=0,
        spec_algorithm=types.SimpleNamespace(is_none=lambda: False),
    )
    for name, value in fields.items():
        # properties of the class keep their own source
        with contextlib.suppress(AttributeError):
            object.__setattr__(configurator, name, value)
    monkeypatch.setattr(module.KVCacheConfigurator, "fused_entry_bytes", lambda self, name: None)
    monkeypatch.setattr(module.KVCacheConfigurator, "_calculate_mamba_ratio", lambda self: RATIO)
    rest = configurator._handle_max_mamba_cache(budget / GIB)
    return round(budget - rest * GIB), schedule.max_mamba_cache_size


def allocated(cache_params, *, draft=4, replay=False, slots=SLOTS, rows=RUNNING, topk=1):
    """Bytes the real pool holds for the same settings (cursors of a few bytes apart)."""
    pool = MambaPool(
        size=slots,
        spec_state_size=rows,
        cache_params=cache_params,
        mamba_layer_ids=list(cache_params.layers),
        device="cpu",
        speculative_num_draft_tokens=draft,
        speculative_eagle_topk=topk,
        enable_linear_replayssm_spec=replay,
    )
    cache = pool.mamba_cache
    tensors = [*cache.conv, cache.temporal, *pool._intermediate_conv_window_phys]
    if cache.intermediate_ssm is not None:
        tensors.append(cache.intermediate_ssm)
    for name in ("d", "k", "g", "rawv", "rawk", "beta"):
        if (ring := getattr(cache, f"replayssm_{name}")) is not None:
            tensors.append(ring)
    return int(sum(get_tensor_size_bytes(x) for x in tensors))


@pytest.mark.parametrize("temporal", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_deduplicated_conv_windows_are_charged_once(monkeypatch, temporal):
    p = params(temporal)
    assert charged(monkeypatch, p)[0] == allocated(p)


def test_tree_verify_is_charged_dense_windows(monkeypatch):
    p = params()
    assert charged(monkeypatch, p, topk=4)[0] == allocated(p, topk=4)


def test_the_adaptive_maximum_is_charged(monkeypatch):
    p = params()
    assert charged(monkeypatch, p, draft=3, widest=6)[0] == allocated(p, draft=6)


def test_replayssm_is_charged_its_conv_windows(monkeypatch):
    p = params()
    assert charged(monkeypatch, p, replay=True)[0] == allocated(p, replay=True)


def test_automatic_slots_and_their_scratch_fit_the_budget_and_no_slot_is_left_over(monkeypatch):
    p = params()
    budget = 200 << 20
    taken, slots = charged(monkeypatch, p, slots=None, budget=budget)
    share = budget * 0.25 / 1.25
    rows = slots // RATIO
    # the joint solve reserves rows for every slot it hands out, the running limit then caps what is charged
    assert allocated(p, slots=slots, rows=rows) <= share < allocated(p, slots=slots + 1 + RATIO, rows=rows + 1)
    assert taken == allocated(p, slots=slots, rows=min(rows, RUNNING))
