"""--gdn-mtp-cache-mode none: no per-draft states, the same outputs and the same committed states as full.

The runtime's own pool, GDN backend and commit are driven on the CPU; their Triton kernels run in the interpreter.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import inspect
import types

import pytest
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
from sglang.srt.layers.attention.linear.utils import resolve_linear_attn_backends
from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
from sglang.srt.mem_cache import kv_cache_configurator
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context

LAYERS, H, HV, DIM, CONV = 2, 1, 2, 64, 4
CHANNELS = 2 * H * DIM + HV * DIM
DRAFTS, REQUESTS, SLOTS = 4, 4, 12
ACTIVATION = torch.float16  # the interpreter's bfloat16 is wrong


class Rig:
    """One GDN hybrid: pool, backend, layers with seeded weights, in one cache mode."""

    def __init__(
        self, mode, *, state_dtype=torch.float32, dtype=ACTIVATION, conv_dtype=ACTIVATION, drafts=DRAFTS, **side_states
    ):
        self.drafts = drafts
        params = Mamba2CacheParams(
            shape=Mamba2StateShape.create(
                tp_world_size=1,
                intermediate_size=HV * DIM,
                n_groups=H,
                num_heads=HV,
                head_dim=DIM,
                state_size=DIM,
                conv_kernel=CONV,
            ),
            layers=list(range(LAYERS)),
            dtype=Mamba2StateDType(conv=conv_dtype, temporal=state_dtype),
        )
        arguments = dict(
            size=REQUESTS,
            mamba_size=SLOTS,
            mamba_spec_state_size=REQUESTS,
            max_context_len=256,
            device="cpu",
            enable_memory_saver=False,
            cache_params=params,
            mamba_layer_ids=list(range(LAYERS)),
            enable_mamba_extra_buffer=True,
            speculative_num_draft_tokens=drafts,
            speculative_eagle_topk=1,
            recover_window_dtype=dtype if mode == "none" else None,
            **side_states,
        )
        known = inspect.signature(HybridReqToTokenPool.__init__).parameters
        self.pool = HybridReqToTokenPool(**{k: v for k, v in arguments.items() if k in known})
        runner = types.SimpleNamespace(
            server_args=types.SimpleNamespace(enable_mis=False),
            device="cpu",
            is_draft_worker=False,
            req_to_token_pool=self.pool,
            token_to_kv_pool=None,
            linear_attn_backends=resolve_linear_attn_backends(),
        )
        self.backend = GDNAttnBackend(runner)
        full = types.SimpleNamespace(
            token_to_kv_pool=None, req_to_token_pool=self.pool, kv_index_translator=None, needs_cpu_seq_lens=False
        )
        self.hybrid = HybridLinearAttnBackend(full, self.backend, full_attn_layers=[])
        generator = torch.Generator().manual_seed(7)
        normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        self.layers = [
            RadixLinearAttention(
                layer_id=i,
                num_q_heads=H,
                num_k_heads=H,
                num_v_heads=HV,
                head_q_dim=DIM,
                head_k_dim=DIM,
                head_v_dim=DIM,
                conv_weights=(0.5 * normal(CHANNELS, CONV)).to(dtype),
                activation="silu",
                A_log=normal(HV),
                dt_bias=normal(HV).to(dtype),
            )
            for i in range(LAYERS)
        ]
        cache = self.cache
        cache.temporal.copy_(normal(*cache.temporal.shape))
        cache.conv[0].copy_(normal(*cache.conv[0].shape))

    @property
    def cache(self):
        return self.pool.mamba_pool.mamba_cache

    def run(self, rows, slots, inputs):
        """Verify one draft window: ``inputs`` [layer](qkv, a, b) with rows * T tokens; returns outputs per layer."""
        self.pool.req_index_to_mamba_index_mapping[rows] = torch.tensor(slots, dtype=torch.int32)
        tokens = inputs[0][0].shape[0]
        batch = types.SimpleNamespace(
            batch_size=len(rows),
            forward_mode=ForwardMode.TARGET_VERIFY,
            logical_forward_mode=ForwardMode.TARGET_VERIFY,
            req_pool_indices=torch.tensor(rows),
            input_ids=torch.zeros(tokens, dtype=torch.int64),
            spec_info=types.SimpleNamespace(draft_token_num=tokens // len(rows), ragged_verify_layout=None),
            mamba_track_indices=None,
            mamba_track_mask=None,
            mamba_prefill_track_mask_cpu=None,
            extend_start_loc=None,
            extend_seq_lens=None,
            extend_seq_lens_cpu=None,
            multi_item_delimiter_indices=None,
            tbo_parent_token_range=None,
        )
        self.backend.init_forward_metadata(batch)
        return [
            self.backend.forward_extend(layer, batch, qkv.clone(), a, b)
            for layer, (qkv, a, b) in zip(self.layers, inputs, strict=True)
        ]

    def commit(self, last_steps, track=None):
        track_slots, track_steps = track or (None, None)
        self.hybrid.update_mamba_state_after_mtp_verify(
            last_correct_step_indices=torch.tensor(last_steps),
            mamba_track_indices=None if track is None else torch.tensor(track_slots),
            mamba_steps_to_track=None if track is None else torch.tensor(track_steps),
            model=None,
            req_pool_indices=None,
        )


def window(seed, rows, drafts=DRAFTS, dtype=ACTIVATION):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    return [
        (normal(rows * drafts, CHANNELS), normal(rows * drafts, HV), normal(rows * drafts, HV)) for _ in range(LAYERS)
    ]


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
