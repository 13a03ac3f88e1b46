"""In --gdn-mtp-cache-mode none the estimator charges what the pool keeps, and the rest becomes KV cache."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import contextlib
import inspect
import types

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache import kv_cache_configurator as module
from sglang.srt.mem_cache.memory_pool import MambaPool

GIB = 1 << 30
RUNNING, RATIO, KV_BYTES_PER_TOKEN = 4, 5, 14_144


def params(layers, heads, value_heads, temporal, conv=torch.bfloat16):
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=value_heads * 128,
        n_groups=heads,
        num_heads=value_heads,
        head_dim=128,
        state_size=128,
        conv_kernel=4,
    )
    dtypes = Mamba2StateDType(conv=conv, temporal=temporal)
    return Mamba2CacheParams(shape=shape, layers=list(range(layers)), dtype=dtypes)


def charged(monkeypatch, cache_params, mode, *, draft, slots, dtype=torch.bfloat16, budget=64 * GIB):
    """Bytes that the real estimator takes from the budget."""
    schedule = types.SimpleNamespace(
        max_running_requests=RUNNING, max_mamba_cache_size=slots, mamba_full_memory_ratio=0.9
    )
    mamba = types.SimpleNamespace(
        enable_linear_replayssm_spec=False, linear_replayssm_cache_len=16, gdn_mtp_cache_mode=mode
    )
    bags = dict(
        get_schedule=schedule,
        get_spec=types.SimpleNamespace(
            speculative_num_draft_tokens=draft, max_speculative_num_draft_tokens=None, speculative_eagle_topk=1
        ),
        get_exec=types.SimpleNamespace(mamba=mamba),
        get_memory=types.SimpleNamespace(disable_radix_cache=False, enable_unified_memory=False),
        get_disagg=types.SimpleNamespace(disaggregation_mode="null", enable_pd_role_switch=False),
        get_context=types.SimpleNamespace(
            override=lambda reason, **fields: [setattr(schedule, n, v) for n, v in fields.items()]
        ),
    )
    for name, value in bags.items():
        monkeypatch.setattr(module, name, lambda value=value: value)
    monkeypatch.setattr(module, "max_speculative_num_draft_tokens", lambda: draft)
    monkeypatch.setattr(module.KVCacheConfigurator, "fused_entry_bytes", lambda self, name: None)
    monkeypatch.setattr(module.KVCacheConfigurator, "_calculate_mamba_ratio", lambda self: RATIO)
    configurator = object.__new__(module.KVCacheConfigurator)
    for name, value in dict(
        mambaish_config=types.SimpleNamespace(mamba2_cache_params=cache_params),
        hybrid_gdn_config=object(),
        hybrid_kda_config=None,
        model_dtype=dtype,
        pp_size=1,
        attn_dp_size=1,
        extra_mamba_cache_bytes_per_req=0,
        spec_algorithm=types.SimpleNamespace(is_none=lambda: False),
    ).items():
        with contextlib.suppress(AttributeError):
            object.__setattr__(configurator, name, value)
    return round(budget - configurator._handle_max_mamba_cache(budget / GIB) * GIB)


@pytest.mark.parametrize(
    ("dtype", "conv"),
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16), (torch.float16, torch.float32)],
    ids=["one_dtype", "fp32_model_bf16_conv", "fp16_model_fp32_conv"],
)
@pytest.mark.parametrize("mode", ["full", "none"])
def test_charged_bytes_are_the_bytes_of_the_pool(monkeypatch, mode, dtype, conv):
    cache_params, draft, slots = params(2, 1, 2, torch.float32, conv), 4, 24
    arguments = dict(
        size=slots,
        spec_state_size=RUNNING,
        cache_params=cache_params,
        mamba_layer_ids=[0, 1],
        device="cpu",
        speculative_num_draft_tokens=draft,
        speculative_eagle_topk=1,
        recover_window_dtype=dtype if mode == "none" else None,
    )
    known = inspect.signature(MambaPool.__init__).parameters
    pool = MambaPool(**{k: v for k, v in arguments.items() if k in known})
    found = charged(monkeypatch, cache_params, mode, draft=draft, slots=slots, dtype=dtype)
    assert found == round(pool.mem_usage * GIB)


@pytest.mark.parametrize(
    ("cache_params", "draft", "states"),
    [
        (params(36, 16, 48, torch.bfloat16), 4, 1080 << 20),
        (params(48, 16, 48, torch.float32), 8, 5760 << 20),
    ],
    ids=["36_layers_bf16_D4", "48_layers_fp32_D8"],
)
def test_the_states_become_kv_tokens(monkeypatch, cache_params, draft, states):
    full = charged(monkeypatch, cache_params, "full", draft=draft, slots=24)
    none = charged(monkeypatch, cache_params, "none", draft=draft, slots=24)
    kept = len(cache_params.layers) * (RUNNING + 1) * draft * ((16 * 128 + 48 * 128) * 2 + 2 * 48 * 4)
    assert full - none == states - kept
    assert (full - none) // KV_BYTES_PER_TOKEN > 79_000
