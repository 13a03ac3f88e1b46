"""The runtime's own pool classes allocate, byte for byte, what the planner says: both modes, both dtypes, PLE or none."""

from dataclasses import replace

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

from sm120.integration.serve.planner import HybridModel, ServerSettings, plan
from sm120.integration.serve.planner.settings import SideState

SMALL = HybridModel(
    linear_layers=3,
    full_layers=1,
    mtp_layers=0,
    num_k_heads=1,
    num_v_heads=3,
    head_k_dim=64,
    head_v_dim=64,
    conv_kernel=4,
    kv_heads=1,
    head_dim=64,
)
# one layer of Flash-Next and of 27B: a whole model does not fit where the tests run
REAL = replace(SMALL, linear_layers=1, num_k_heads=16, num_v_heads=48, head_k_dim=128, head_v_dim=128)
PLE = SideState(layers=1, channels=160, width=9, ngram_tokens=2)


def allocated(model: HybridModel, settings: ServerSettings) -> dict[str, int]:
    layers = list(range(model.linear_layers))
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=model.num_v_heads * model.head_v_dim,
        n_groups=model.num_k_heads,
        num_heads=model.num_v_heads,
        head_dim=model.head_v_dim,
        state_size=model.head_k_dim,
        conv_kernel=model.conv_kernel,
    )
    dtypes = Mamba2StateDType(conv=getattr(torch, settings.conv_dtype), temporal=getattr(torch, settings.state_dtype))
    side = model.side_state
    pool = HybridReqToTokenPool(
        size=settings.max_running,
        mamba_size=settings.mamba_slots,
        mamba_spec_state_size=settings.max_running,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=layers, dtype=dtypes),
        mamba_layer_ids=layers,
        enable_mamba_extra_buffer=True,
        speculative_num_draft_tokens=settings.draft_tokens,
        speculative_eagle_topk=1,
        recover_window_dtype=getattr(torch, settings.model_dtype) if settings.cache_mode == "none" else None,
        short_conv_layer_ids=list(range(side.layers)) if side else None,
        short_conv_state_shape=(side.channels, side.width) if side else None,
        ngram_context_len=side.ngram_tokens if side else 0,
        ngram_eos_token_id=0,
    )
    mamba, cache = pool.mamba_pool, pool.mamba_pool.mamba_cache
    tensors = {
        "conv": cache.conv,
        "ssm": [cache.temporal],
        "conv_window": mamba._intermediate_conv_window_phys,
        "intermediate_ssm": [cache.intermediate_ssm],
        "recover_window": mamba.recover_window or [],
        "ple_short_conv": [pool.short_conv_pool.conv_state],
        "ple_short_conv_window": [pool.short_conv_pool.intermediate_conv_state],
        "ple_ngram": [pool.ngram_pool.context],
        "ple_ngram_window": [pool.ngram_pool.intermediate_context],
    }
    sizes = {name: sum(x.numel() * x.element_size() for x in xs if x is not None) for name, xs in tensors.items()}
    return {name: size for name, size in sizes.items() if size}


def planned(model: HybridModel, settings: ServerSettings) -> dict[str, int]:
    return {pool.name: pool.bytes for pool in plan(model, settings) if pool.name != "kv"}


def server(**changes) -> ServerSettings:
    values = dict(max_running=2, mamba_slots=7, kv_tokens=64, draft_tokens=4)
    return ServerSettings(**values | changes)


@pytest.mark.parametrize("ple", [False, True], ids=["plain", "ple"])
@pytest.mark.parametrize("drafts", [4, 16])
@pytest.mark.parametrize("state", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["full", "none"])
def test_every_pool_of_the_planner_is_allocated_and_no_other(mode, state, drafts, ple):
    model = replace(SMALL, side_state=PLE) if ple else SMALL
    settings = server(cache_mode=mode, state_dtype=state, draft_tokens=drafts)
    assert allocated(model, settings) == planned(model, settings)


@pytest.mark.parametrize(("model", "conv"), [("float16", "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32")])
def test_the_window_has_the_model_s_dtype_and_the_conv_pools_their_own(model, conv):
    settings = server(cache_mode="none", model_dtype=model, conv_dtype=conv)
    assert allocated(SMALL, settings) == planned(SMALL, settings)


def test_a_layer_of_the_real_geometry():
    settings = server(cache_mode="none", state_dtype="float32", draft_tokens=8)
    assert allocated(REAL, settings) == planned(REAL, settings)
    assert planned(REAL, settings)["ssm"] == 8 * 3 << 20
