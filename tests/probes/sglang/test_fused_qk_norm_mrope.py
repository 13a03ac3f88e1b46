"""Probe of fused-qk-norm-mrope: Qwen3-MoE attention fuses QK norm and rope for three-axis positions, and only there.

The kernel itself cannot run here: a PyTorch function stands in for the compiled module and records its arguments.
Everything in front of it is upstream's own: config parsing, the rotary embedding, the decision, the packed axis map.
"""

import importlib
import importlib.util
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.rotary_embedding import base as rotary_base
from sglang.srt.layers.rotary_embedding import factory as rotary_factory
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.layers.rotary_embedding.mrope import Ernie4_5_VLRotaryEmbedding, MRotaryEmbedding
from sglang.srt.models import qwen3_moe
from sglang.srt.models.interns1pro import InternS1ProTextAttention
from sglang.srt.models.qwen3_moe import Qwen3MoeAttention
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.utils.hf_transformers_utils import get_rope_config

OP = "sglang.kernels.ops.attention.fused_qk_norm_mrope"
HEAD_DIM, HEADS, KV_HEADS, TOKENS = 128, 8, 2, 7
INTERLEAVED = {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
SECTIONED = {"mrope_section": [16, 24, 24]}
GLM = {"mrope_section": [20, 24, 20], "mrope_interleaved_glm": True}
IMAGE = torch.tensor([[3, 4, 5, 5, 5, 5, 8], [3, 4, 5, 5, 6, 6, 8], [3, 4, 5, 6, 5, 6, 8]])


def yarn(factor):
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 128, **INTERLEAVED}


class Kernel:
    """In place of the JIT module: the maths in float32 torch, from the arguments that the kernel would get."""

    def __init__(self):
        self.calls = []

    def fused_qk_norm_mrope(self, qkv, q_weight, k_weight, positions, cache, *rest):
        *words, num_q, num_k, eps = rest
        self.calls.append(SimpleNamespace(positions=positions, cache=cache, heads=(num_q, num_k)))
        dim = q_weight.shape[0]
        half = cache.shape[1] // 2
        axes = torch.tensor([words[i // 32] >> (2 * (i % 32)) & 3 for i in range(half)])
        rows = cache.float()[positions if positions.dim() == 2 else positions.expand(3, -1)]
        cos, sin = (part.gather(0, axes.expand(1, len(qkv), half))[0, :, None] for part in rows.split(half, -1))
        heads = qkv.view(len(qkv), -1, dim)
        for first, last, weight in ((0, num_q, q_weight), (num_q, num_q + num_k, k_weight)):
            x = heads[:, first:last].float()
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()
            a, b = x[..., :half].clone(), x[..., half : 2 * half].clone()
            x[..., :half], x[..., half : 2 * half] = a * cos - b * sin, b * cos + a * sin
            heads[:, first:last] = x.to(qkv.dtype)


@pytest.fixture
def kernel(monkeypatch):
    """Say that this is a CUDA machine where the three-axis kernel compiles and the one-axis kernel does not."""
    stand_in = Kernel()
    monkeypatch.setattr(rotary_factory, "_ROPE_DICT", {})
    monkeypatch.setattr(rotary_base, "_is_cuda", True)
    monkeypatch.setattr(qwen3_moe, "_is_cuda", True)
    monkeypatch.setattr(qwen3_moe, "enable_fused_set_kv_buffer", lambda forward_batch: False)
    monkeypatch.setattr(qwen3_moe, "can_use_fused_qk_norm_rope", lambda *_: False, raising=False)
    if importlib.util.find_spec(OP) is None:
        yield stand_in
        return
    op = importlib.import_module(OP)
    monkeypatch.setattr(op, "_jit_fused_qk_norm_mrope_module", lambda *_: stand_in)
    for name in ("can_use_fused_qk_norm_mrope", "fused_qk_norm_mrope", "pack_axis_map"):
        monkeypatch.setattr(qwen3_moe, name, getattr(op, name), raising=False)
    with torch.library._scoped_library("sglang", "IMPL") as library:  # upstream registers the op for CUDA alone
        library.impl("fused_qk_norm_mrope", op.fused_qk_norm_mrope.__wrapped__, "CPU")
        yield stand_in


@contextmanager
def published(tp_size=1, fused=True):
    override = get_context().override_server_args(model_path="dummy", device="cpu", enable_fused_qk_norm_rope=fused)
    with (
        override,
        get_parallel().override(tp_size=tp_size, tp_rank=0, attn_tp_size=tp_size, attn_tp_rank=0, moe_tp_size=tp_size),
    ):
        yield


def config_of(**fields):
    return SimpleNamespace(
        head_dim=HEAD_DIM,
        hidden_size=64,
        num_attention_heads=HEADS,
        max_position_embeddings=512,
        **fields,
    )


def attention(rope, tp_size=1, fused=True, cls=Qwen3MoeAttention, head_dim=HEAD_DIM, config=None):
    config = config or config_of(rope_parameters={"rope_theta": 1e6, "rope_type": "default", **rope})
    theta, scaling = get_rope_config(config)
    with published(tp_size, fused):
        layer = cls(
            64, HEADS, KV_HEADS, rope_theta=theta, rope_scaling=scaling, max_position_embeddings=512,
            head_dim=head_dim, config=config,
        )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    for norm in (layer.q_norm, layer.k_norm):
        norm.weight.data = (1 + 0.2 * torch.randn(head_dim, generator=generator)).bfloat16()
    return layer


def projection(layer, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, layer.q_size + 2 * layer.kv_size, generator=generator).to(dtype)


def unfused(layer, qkv, positions):
    """Norm and rope as the layer's own modules do them, in float32."""
    q, k, v = qkv.float().split([layer.q_size, layer.kv_size, layer.kv_size], -1)
    dim = layer.head_dim

    def normalize(x, norm):
        x = x.reshape(TOKENS, -1, dim)
        return (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight.float()
        ).reshape(TOKENS, -1)

    q, k = layer.rotary_emb.forward_native(positions, normalize(q, layer.q_norm), normalize(k, layer.k_norm))
    return q, k, v


def assert_fused(layer, kernel, positions):
    qkv = projection(layer)
    want = unfused(layer, qkv, positions)
    with torch.no_grad():
        got = layer.apply_qk_norm_rope(qkv, positions, forward_batch=None)
    assert len(kernel.calls) == 1, "norm and rope of three-axis positions are not fused"
    assert kernel.calls[0].positions is positions
    for name, x, y in zip("qkv", got, want, strict=True):
        torch.testing.assert_close(x.float(), y, rtol=2**-8, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(
    "rope", [INTERLEAVED, SECTIONED, yarn(2.0), yarn(4.0)], ids=["interleaved", "sectioned", "yarn2", "yarn4"]
)
def test_three_axis_positions_are_fused(kernel, rope):
    assert_fused(attention(rope), kernel, IMAGE)


@pytest.mark.parametrize("norms", [("q_norm",), ("k_norm",), ("q_norm", "k_norm")], ids="-".join)
def test_norm_weights_of_another_dtype_go_where_they_went_before(kernel, norms, monkeypatch):
    layer = attention(INTERLEAVED)
    for name in norms:
        getattr(layer, name).weight.data = getattr(layer, name).weight.data.float()
    before = object()
    monkeypatch.setattr(qwen3_moe, "apply_qk_norm", lambda **_: (before, before))
    monkeypatch.setattr(layer.rotary_emb, "forward", lambda *_, **__: (before, before))
    assert layer.apply_qk_norm_rope(projection(layer), IMAGE, forward_batch=None)[0] is before
    assert not kernel.calls


def test_glm_order_reaches_the_kernel(kernel):
    layer = attention(GLM)
    with torch.no_grad():
        got = layer.apply_qk_norm_rope(projection(layer), IMAGE, forward_batch=None)[0]
    assert len(kernel.calls) == 1, "norm and rope of three-axis positions are not fused"
    # the native path has no GLM order, so pick each pair's row here: t, h, w in turn, passing over spent sections
    left, owner = list(GLM["mrope_section"]), []
    for pair in range(HEAD_DIM // 2):
        axis = next(a % 3 for a in range(pair % 3, pair % 3 + 3) if left[a % 3])
        left[axis] -= 1
        owner.append(axis)
    cache = layer.rotary_emb.cos_sin_cache
    cos, sin = (torch.stack([c[IMAGE[a], i] for i, a in enumerate(owner)], -1)[:, None] for c in cache.chunk(2, -1))
    q = projection(layer).float()[:, : layer.q_size].reshape(TOKENS, -1, HEAD_DIM)
    q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6) * layer.q_norm.weight.float()
    a, b = q.chunk(2, -1)
    want = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).reshape(TOKENS, -1)
    torch.testing.assert_close(got.float(), want, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("tp_size", [2, 4, 8])
def test_a_rank_with_fewer_heads(kernel, tp_size):
    layer = attention(INTERLEAVED, tp_size=tp_size)
    assert layer.num_heads == HEADS // tp_size and layer.num_kv_heads == max(1, KV_HEADS // tp_size)
    assert_fused(layer, kernel, IMAGE)
    assert kernel.calls[0].heads == (layer.num_heads, layer.num_kv_heads)


@pytest.mark.parametrize(
    "positions",
    [
        torch.arange(TOKENS),
        torch.arange(TOKENS).unsqueeze(0).expand(3, -1),
        torch.nn.functional.pad(IMAGE, (0, 9), value=-1)[:, :TOKENS],
        IMAGE.int(),
    ],
    ids=["one_axis", "one_row_expanded", "slice_of_a_graph_buffer", "int32"],
)
def test_positions_go_to_the_kernel_as_they_are(kernel, positions):
    assert_fused(attention(INTERLEAVED), kernel, positions)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default", **INTERLEAVED}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "default", **INTERLEAVED}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "default", "type": "default", **INTERLEAVED}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", **INTERLEAVED}, "rope_scaling": None},
        {"rope_theta": 1.0, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", **INTERLEAVED},
         "rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}},
    ],
    ids=["rope_parameters", "rope_scaling", "both_type_keys", "theta_outside", "parameters_win"],
)  # fmt: skip
def test_every_spelling_of_the_config(kernel, fields):
    layer = attention(None, config=config_of(**fields))
    assert layer.rotary_emb.base == 1e6 and layer.rotary_emb.mrope_section == [24, 20, 20]
    assert_fused(layer, kernel, IMAGE)


def test_key_is_left_for_the_attention_backend_to_store(kernel, monkeypatch):
    layer = attention(INTERLEAVED)
    seen = {}
    layer.attn.forward = lambda q, k, v, batch, save_kv_cache=True: seen.update(save=save_kv_cache) or q
    layer.o_proj.forward = lambda x: (x, None)
    layer.qkv_proj.forward = lambda x: (projection(layer), None)
    monkeypatch.setattr(qwen3_moe, "enable_fused_set_kv_buffer", lambda forward_batch: True)
    with torch.no_grad():
        layer(IMAGE, torch.empty(TOKENS, 64), SimpleNamespace())
    assert len(kernel.calls) == 1, "norm and rope of three-axis positions are not fused"
    assert seen == {"save": True}


def test_another_row_gives_another_result(kernel):
    layer = attention(INTERLEAVED)
    rows = torch.tensor([[5] * TOKENS, [5] + [9] * (TOKENS - 1), [5] + [3] * (TOKENS - 1)])
    with torch.no_grad():
        three = layer.apply_qk_norm_rope(projection(layer), rows, None)[0].clone()
        one = layer.apply_qk_norm_rope(projection(layer), rows[0], None)[0]
    assert len(kernel.calls) == 2, "norm and rope of three-axis positions are not fused"
    assert torch.equal(three[0], one[0])
    assert not torch.equal(three[1], one[1])


class Subclass(MRotaryEmbedding):
    """An embedding that may turn its pairs in any way."""


@pytest.mark.parametrize(
    ("rope", "options"),
    [
        (INTERLEAVED, {"fused": False}),
        ({}, {}),
        (INTERLEAVED, {"cls": InternS1ProTextAttention}),
        ({"mrope_section": [16, 12, 12]}, {"head_dim": 80}),
    ],
    ids=["flag_off", "no_mrope", "interns1pro", "head_dim_80"],
)
def test_what_is_not_covered_stays_unfused(kernel, monkeypatch, rope, options):
    if options.get("head_dim") == 80:
        monkeypatch.setattr(rotary_base, "_is_cuda", False)  # upstream's own kernel for this size is CUDA's
        monkeypatch.setattr(rotary_base, "_is_cpu", True)
    layer = attention(rope, **options)
    qkv = projection(layer)
    with torch.no_grad():
        got = layer.apply_qk_norm_rope(qkv, IMAGE[0], forward_batch=None)
    assert not kernel.calls
    for x, y in zip(got, unfused(layer, projection(layer), IMAGE[0]), strict=True):
        torch.testing.assert_close(x.float(), y, rtol=2**-5, atol=2**-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_another_activation_type_stays_unfused(kernel, dtype):
    layer = attention(INTERLEAVED)
    with torch.no_grad():
        layer.apply_qk_norm_rope(projection(layer, dtype), IMAGE, forward_batch=None)
    assert not kernel.calls


@pytest.mark.parametrize("kind", ["subclass", "ernie", "no_section", "odd_rotary_dim", "on_policy", "meta"])
def test_an_embedding_that_is_not_covered_is_refused(kernel, kind):
    if importlib.util.find_spec(OP) is None:
        pytest.fail("there is no fused op for three-axis positions")
    can_use = importlib.import_module(OP).can_use_fused_qk_norm_mrope
    plain = dict(max_position_embeddings=64, base=1e4, is_neox_style=True, dtype=torch.bfloat16)
    with published(), torch.device("meta") if kind == "meta" else nullcontext():
        if kind == "subclass":
            rotary = Subclass(128, 128, **plain, **SECTIONED)
        elif kind == "ernie":
            rotary = Ernie4_5_VLRotaryEmbedding(128, 128, **plain, mrope_section=[22, 22, 20])
        elif kind == "no_section":
            rotary = MRotaryEmbedding(128, 128, **plain)
        elif kind == "odd_rotary_dim":
            rotary = MRotaryEmbedding(128, 24, **plain, mrope_section=[4, 4, 4])
        else:
            rotary = MRotaryEmbedding(128, 128, **plain, **SECTIONED)
        rotary._force_native = kind == "on_policy"
        assert not can_use(rotary, 128, torch.bfloat16)
        if kind != "meta":
            assert can_use(MRotaryEmbedding(128, 128, **plain, **SECTIONED), 128, torch.bfloat16)


def test_get_rope_makes_the_embedding_that_the_fused_path_expects(kernel):
    rope = {"rope_type": "default", **INTERLEAVED}
    with published():
        rotary = get_rope(128, 128, 512, 1e6, rope_scaling=rope)
    assert type(rotary) is MRotaryEmbedding and rotary.cos_sin_cache.dtype == torch.float32
