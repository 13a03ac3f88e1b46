"""One GDN hybrid on the CPU: upstream's own pool, backend and commit, their Triton kernels in the interpreter."""

import contextlib
import inspect
import os
import types
from unittest import mock

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
from sglang.srt.layers.attention.linear.utils import resolve_linear_attn_backends
from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

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
        with interpreted_commit():
            self.hybrid.update_mamba_state_after_mtp_verify(
                last_correct_step_indices=torch.tensor(last_steps),
                mamba_track_indices=None if track is None else torch.tensor(track_slots),
                mamba_steps_to_track=None if track is None else torch.tensor(track_steps),
                model=None,
                req_pool_indices=None,
            )


@contextlib.contextmanager
def interpreted_commit():
    """Let the commit's kernels run: they are plain Triton, and only a check on the host asks for an accelerator."""
    with mock.patch.object(torch.Tensor, "is_xpu", property(lambda self: True), create=True):
        yield


def window(seed, rows, drafts=DRAFTS, dtype=ACTIVATION):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    return [
        (normal(rows * drafts, CHANNELS), normal(rows * drafts, HV), normal(rows * drafts, HV)) for _ in range(LAYERS)
    ]
