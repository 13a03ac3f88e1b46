"""Runs the patched Qwen3-VL-MoE language model of SGLang on the CPU, fused and unfused; prints one JSON object.

Stood in for: the compiled kernel (by the CPU build of the same source, behind SGLang's own op and checks of the model
file), attention (dense, causal, in float32) and the platform test "is this CUDA". The model file, the rotary
embedding, the decision to fuse, the packed axis map, norms, projections and experts are SGLang's.
"""

from __future__ import annotations

import json
import os
import sys
import types

os.environ |= {"SGLANG_USE_CPU_ENGINE": "0", "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1"}

import torchvision_schemas  # noqa: F401

# isort: split
import torch
from mrope_cpu_build import library, run
from sglang.kernels.ops.attention import fused_qk_norm_mrope as op_file
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import base as rotary_base
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.models import qwen3_moe
from sglang.srt.models.qwen3_vl_moe import Qwen3MoeLLMModel
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs
from transformers import Qwen3VLMoeTextConfig

VARIANT = "mrope_bf16_f32_d128_r128_a3_neox"
TOKENS, VOCAB, HIDDEN = 24, 97, 128


class CpuModule:
    """What load_jit would return, on the CPU build of the kernel."""

    def __init__(self) -> None:
        self.calls = 0
        self.temporal_only = False

    def fused_qk_norm_mrope(self, qkv, q_weight, k_weight, positions, cache, *rest) -> None:
        *words, num_q_heads, num_kv_heads, eps = rest
        if self.temporal_only:
            words = [0] * 4
        self.calls += 1
        tensors = (qkv, q_weight, k_weight, positions, cache)
        run(library(only=VARIANT), q_weight.shape[0], True, tensors, words, num_q_heads, num_kv_heads, eps)


def attend(self, q, k, v, forward_batch, save_kv_cache=True, **_):
    """Causal attention over this one request, instead of a backend with a cache."""
    assert save_kv_cache
    heads = [x.reshape(x.shape[0], -1, self.qk_head_dim).transpose(0, 1).float() for x in (q, k, v)]
    group = heads[0].shape[0] // heads[1].shape[0]
    k, v = (x.repeat_interleave(group, 0) for x in heads[1:])
    out = torch.nn.functional.scaled_dot_product_attention(heads[0], k, v, is_causal=True, scale=self.scaling)
    return out.transpose(0, 1).reshape(q.shape[0], -1).to(q.dtype)


def text_and_image_positions() -> torch.Tensor:
    """Eight text tokens, an image of 3 x 4 patches, four text tokens: `[3, 24]` as Qwen3-VL numbers them."""
    positions = torch.arange(TOKENS).repeat(3, 1)
    patches = torch.arange(12)
    positions[:, 8:20] = 8 + torch.stack([torch.zeros(12, dtype=torch.int64), patches // 4, patches % 4])
    positions[:, 20:] = 12 + torch.arange(4)
    return positions


def build(fused: bool, dtype: torch.dtype) -> Qwen3MoeLLMModel:
    """A tiny random model, the same numbers each time."""
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    config = Qwen3VLMoeTextConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=128, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2,
        max_position_embeddings=512, rope_parameters=rope,
    )  # fmt: skip
    torch.set_default_dtype(dtype)
    model = Qwen3MoeLLMModel(config=config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            norm = "norm" in name
            scale = 0.3 if norm else 1.5 / weight.shape[-1] ** 0.5
            weight.copy_(
                (norm + scale * torch.randn(weight.shape, generator=generator, dtype=torch.float32)).bfloat16()
            )
    for layer in model.layers:
        assert layer.self_attn.use_fused_qk_norm_mrope
        layer.self_attn.use_fused_qk_norm_mrope = fused
    return model


def logits(model: Qwen3MoeLLMModel, positions: torch.Tensor) -> torch.Tensor:
    ids = torch.randint(0, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(1))
    zero = torch.zeros(1, dtype=torch.int64)
    batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND, batch_size=1, input_ids=ids, req_pool_indices=zero, seq_lens=zero + TOKENS,
        out_cache_loc=torch.arange(TOKENS), seq_lens_sum=TOKENS,
    )  # fmt: skip
    with torch.no_grad():
        hidden = model(ids, positions, batch)
    return hidden.float() @ model.embed_tokens.weight.float().T


def main() -> None:
    publish(
        ServerArgs(model_path="dummy", device="cpu", enable_fused_qk_norm_rope=True),
        role="test",
        ranks=SpawnRanks(world_rank=0),
    )
    store = f"file://{sys.argv[1]}"
    init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=store)
    initialize_model_parallel(backend="gloo")
    module = CpuModule()
    rotary_base._is_cuda = True  # keeps the cos/sin cache in float32, as on CUDA
    RadixAttention.forward = attend
    op_file._jit_fused_qk_norm_mrope_module = lambda *_: module
    implementations = torch.library.Library("sglang", "IMPL")
    implementations.impl("fused_qk_norm_mrope", op_file.fused_qk_norm_mrope.__wrapped__, "CPU")
    for name in ("can_use_fused_qk_norm_mrope", "fused_qk_norm_mrope", "pack_axis_map"):
        setattr(qwen3_moe, name, getattr(op_file, name))
    qwen3_moe.enable_fused_set_kv_buffer = lambda forward_batch: False
    qwen3_moe._is_cuda = True
    qwen3_moe.get_stream = lambda name: None

    positions = text_and_image_positions()
    fused, unfused = build(True, torch.bfloat16), build(False, torch.bfloat16)
    exact = logits(build(False, torch.float32), positions)
    fused_logits = logits(fused, positions)
    calls = module.calls
    unfused_logits = logits(unfused, positions)
    module.temporal_only = True
    temporal_logits = logits(fused, positions)

    def rms(x: torch.Tensor) -> float:
        return float(x.square().mean().sqrt() / exact.square().mean().sqrt())

    report = types.SimpleNamespace(
        calls=calls,
        fused_error=rms(fused_logits - exact),
        unfused_error=rms(unfused_logits - exact),
        fused_against_unfused=rms(fused_logits - unfused_logits),
        temporal_only_against_unfused=rms(temporal_logits - unfused_logits),
        same_argmax=float((fused_logits.argmax(-1) == unfused_logits.argmax(-1)).double().mean()),
    )
    print(json.dumps(vars(report)))


if __name__ == "__main__":
    main()
