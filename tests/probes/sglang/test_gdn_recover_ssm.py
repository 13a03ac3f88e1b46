"""--gdn-mtp-cache-mode none: no per-draft states, the same outputs and the same committed states as full.

The runtime's own pool, GDN backend and commit are driven on the CPU; their Triton kernels run in the interpreter.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import inspect
import sys
import types
from pathlib import Path

import pytest
import torch
from sglang.srt.mem_cache import kv_cache_configurator
from sglang.srt.runtime_context import get_context

sys.path.insert(0, str(Path(__file__).parent))
from gdn_rig import DIM, DRAFTS, HV, LAYERS, REQUESTS, H, Rig, window


@pytest.fixture
def runtime():
    override = get_context().override_server_args(
        speculative_eagle_topk=1, speculative_num_draft_tokens=DRAFTS, attention_backend="triton"
    )
    override.install()
    yield
    override.restore()


def test_the_pool_without_states_is_smaller_by_exactly_them(runtime):
    full, none = Rig("full").pool.mamba_pool, Rig("none").pool.mamba_pool
    states = LAYERS * (REQUESTS + 1) * DRAFTS * HV * DIM * DIM * 4
    kept = LAYERS * (REQUESTS + 1) * DRAFTS * ((H * DIM + HV * DIM) * 2 + 2 * HV * 4)
    assert none.mamba_cache.intermediate_ssm is None
    assert round((full.mem_usage - none.mem_usage) * (1 << 30)) == states - kept


@pytest.mark.parametrize(
    ("state_dtype", "last_steps"),
    [(torch.float32, [0, 3]), (torch.bfloat16, [2, 1])],
    ids=["fp32_state", "bf16_state"],
)
def test_outputs_and_committed_states_equal_the_full_pool(runtime, state_dtype, last_steps):
    full, none = Rig("full", state_dtype=state_dtype), Rig("none", state_dtype=state_dtype)
    assert none.cache.intermediate_ssm is None, "the mode must not fall back to full"
    rows, slots, track = [3, 1], [5, 2], ([6, 7], [-1, last_steps[1]])
    for round_ in range(2):
        inputs = window(round_, len(rows))
        for ours, theirs in zip(none.run(rows, slots, inputs), full.run(rows, slots, inputs), strict=True):
            assert torch.equal(ours, theirs)
        none.commit(last_steps, track)
        full.commit(last_steps, track)
        # bit for bit, slots that nobody named included
        assert torch.equal(none.cache.temporal, full.cache.temporal)
        assert torch.equal(none.cache.conv[0], full.cache.conv[0])


@pytest.mark.parametrize(
    ("dtype", "conv_dtype"),
    [(torch.float16, torch.float32), (torch.float32, torch.float16), (torch.float16, torch.bfloat16)],
    ids=["fp16_model_fp32_conv", "fp32_model_fp16_conv", "fp16_model_bf16_conv"],
)
def test_the_conv_state_may_have_another_dtype_than_the_model(runtime, dtype, conv_dtype):
    """SGLANG_MAMBA_CONV_DTYPE is bfloat16 unless it is set, also for --dtype float16 and float32."""
    full, none = (Rig(mode, dtype=dtype, conv_dtype=conv_dtype) for mode in ("full", "none"))
    assert none.cache.intermediate_ssm is None, "the mode must not fall back to full"
    assert none.pool.mamba_pool.recover_window.k.dtype == dtype
    for round_ in range(2):
        inputs = window(round_, 2, dtype=dtype)
        for ours, theirs in zip(none.run([3, 1], [5, 2], inputs), full.run([3, 1], [5, 2], inputs), strict=True):
            assert torch.equal(ours, theirs)
        none.commit([1, 2])
        full.commit([1, 2])
        assert torch.equal(none.cache.temporal, full.cache.temporal)
        assert torch.equal(none.cache.conv[0], full.cache.conv[0])


def test_the_server_takes_the_model_s_dtype_for_the_draft_inputs(monkeypatch):
    configurator = object.__new__(kv_cache_configurator.KVCacheConfigurator)
    configurator.model_dtype, configurator.hybrid_gdn_config = torch.float16, object()
    mamba = types.SimpleNamespace(gdn_mtp_cache_mode="none")
    monkeypatch.setattr(kv_cache_configurator, "get_exec", lambda: types.SimpleNamespace(mamba=mamba))
    monkeypatch.setattr(kv_cache_configurator, "get_spec", lambda: types.SimpleNamespace(speculative_eagle_topk=None))
    assert hasattr(configurator, "_recover_window_dtype"), "the runtime has no --gdn-mtp-cache-mode"
    assert configurator._recover_window_dtype() == torch.float16
    mamba.gdn_mtp_cache_mode = "full"
    assert configurator._recover_window_dtype() is None


def test_ple_side_states_are_committed_as_in_full_mode(runtime):
    ple = dict(short_conv_layer_ids=[0], short_conv_state_shape=(8, 9), ngram_context_len=2, ngram_eos_token_id=0)
    full, none = Rig("full", **ple), Rig("none", **ple)
    assert none.cache.intermediate_ssm is None, "the mode must not fall back to full"
    for rig in (full, none):
        short, ngram = rig.pool.short_conv_pool, rig.pool.ngram_pool
        kept, contexts = short.intermediate_conv_state, ngram.intermediate_context
        kept.copy_(torch.arange(1.0, kept.numel() + 1).remainder(1999).view(kept.shape))
        contexts.copy_(torch.arange(1, contexts.numel() + 1).view(contexts.shape))
        rig.run([3, 1], [5, 2], window(0, 2))
        rig.commit([2, 0], ([6, 7], [-1, 0]))
        # rows of the window are those of the requests in the batch; slot 6 has no checkpoint due
        want = torch.stack([kept[:, 0, 2], kept[:, 1, 0], kept[:, 1, 0]], dim=1)
        assert torch.equal(short.conv_state[:, [5, 2, 7]], want)
        assert not short.conv_state[:, 6].any()
        assert torch.equal(ngram.context[[5, 2, 7]], torch.stack([contexts[0, 2], contexts[1, 0], contexts[1, 0]]))
    assert torch.equal(none.pool.short_conv_pool.conv_state, full.pool.short_conv_pool.conv_state)
    assert torch.equal(none.cache.temporal, full.cache.temporal)


def test_verify_leaves_every_state_alone(runtime):
    rig = Rig("none")
    assert rig.cache.intermediate_ssm is None
    before = rig.cache.temporal.clone()
    rig.run([1, 2], [4, 5], window(0, 2))
    assert torch.equal(rig.cache.temporal, before)


def test_the_flag_moves_no_positional_argument():
    from sglang.srt.arg_groups.field_order import POSITIONAL_FIELD_ORDER
    from sglang.srt.server_args import ServerArgs

    names = list(inspect.signature(ServerArgs).parameters)
    assert "gdn_mtp_cache_mode" in names, "the runtime has no --gdn-mtp-cache-mode"
    listed = [name for name in POSITIONAL_FIELD_ORDER if name != "gdn_mtp_cache_mode"]
    assert names[: len(listed)] == listed


def settings(**changes):
    values = dict(
        gdn_mtp_cache_mode="none",
        speculative_algorithm="EAGLE",
        speculative_eagle_topk=1,
        enable_linear_replayssm=False,
        enable_linear_replayssm_spec=False,
        linear_attn_verify_backend=None,
        disaggregation_mode="null",
        enable_unified_memory=False,
        enable_two_batch_overlap=False,
    )
    return types.SimpleNamespace(**values | changes)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (dict(speculative_algorithm=None), "speculative-algorithm"),
        (dict(speculative_algorithm="NGRAM"), "NGRAM"),
        (dict(speculative_eagle_topk=4), "topk 1"),
        (dict(enable_linear_replayssm_spec=True), "ReplaySSM"),
        (dict(linear_attn_verify_backend="flashinfer"), "flashinfer"),
        (dict(disaggregation_mode="decode"), "disaggregation"),
        (dict(enable_unified_memory=True), "unified-memory"),
        (dict(enable_two_batch_overlap=True), "two-batch-overlap"),
    ],
    ids=lambda x: str(x) if isinstance(x, str) else "",
)
def test_what_the_mode_cannot_do_is_refused_with_its_name(changes, names):
    try:
        from sglang.srt.layers.attention.linear.gdn_recover_state import validate_gdn_mtp_cache_mode
    except ImportError:
        pytest.fail("the runtime has no --gdn-mtp-cache-mode")
    validate_gdn_mtp_cache_mode(settings())
    validate_gdn_mtp_cache_mode(settings(speculative_algorithm="DFLASH", speculative_eagle_topk=None))
    with pytest.raises(ValueError, match=names):
        validate_gdn_mtp_cache_mode(settings(**changes))
