"""Calibrated k_scale/v_scale of an FP8 QSA cache must be honoured at every write and every read."""

import os
import sys
import types

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.srt.layers.attention import qwen_sparse_attn_backend as backend_module
from sglang.srt.layers.attention.qsa import sparse_attn
from sglang.srt.layers.attention.qwen_sparse_attn_backend import QwenSparseAttnBackend, QwenSparseAttnMetadata
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

FP8 = torch.float8_e4m3fn
LAYER = 0
HEADS, KV_HEADS, DIM = 4, 2, 256
TOKENS = 12
SCALING = DIM**-0.5
K_SCALE, V_SCALE = 0.25, 0.5


class OnDevice(torch.Tensor):
    """A CPU tensor that takes the accelerator branches; the kernels run in Triton's interpreter."""

    @property
    def is_cuda(self):
        return True


def make_layer(k_scale=K_SCALE, v_scale=V_SCALE):
    return types.SimpleNamespace(
        layer_id=LAYER,
        tp_q_head_num=HEADS,
        tp_k_head_num=KV_HEADS,
        tp_v_head_num=KV_HEADS,
        head_dim=DIM,
        qk_head_dim=DIM,
        v_head_dim=DIM,
        scaling=SCALING,
        k_scale=None,
        v_scale=None,
        k_scale_float=k_scale,
        v_scale_float=v_scale,
    )


def make_backend(rows: int):
    """A backend over a real FP8 pool holding `TOKENS` tokens of one request in slots 70, 72, …"""
    pool = MHATokenToKVPool(
        size=128,
        page_size=64,
        dtype=FP8,
        head_num=KV_HEADS,
        head_dim=DIM,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    slots = 70 + 2 * torch.arange(TOKENS)
    req_to_token = torch.zeros(3, 32, dtype=torch.int32)
    req_to_token[2, :TOKENS] = slots
    runner = types.SimpleNamespace(
        token_to_kv_pool=pool,
        device="cpu",
        model_config=types.SimpleNamespace(hf_text_config=types.SimpleNamespace(), context_len=64),
        req_to_token_pool=types.SimpleNamespace(req_to_token=req_to_token),
    )
    backend = QwenSparseAttnBackend(runner)
    lengths = torch.arange(TOKENS - rows + 1, TOKENS + 1, dtype=torch.int32)
    backend.forward_metadata = QwenSparseAttnMetadata(
        sequence_lengths=lengths,
        token_to_batch_idx=torch.arange(rows, dtype=torch.int32),
        token_slot_table=req_to_token[2:3].expand(rows, -1),
        indexer_metadata=None,
        row_req_pool_indices=torch.full((rows,), 2, dtype=torch.int32),
    )
    return backend, pool, slots


def make_kv():
    generator = torch.Generator().manual_seed(7)
    k = torch.randn(TOKENS, KV_HEADS, DIM, generator=generator)
    v = torch.randn(TOKENS, KV_HEADS, DIM, generator=generator)
    v[3, 0, 0], v[3, 0, 1] = 400.0, -400.0  # beyond 448 once divided by the scale
    return k, v


def quantized(x, scale):
    return (x / scale).clamp(-448, 448).to(FP8)


def reference(q, k, v, selections):
    """Dense float64 softmax over each row's selected positions."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row, selection in enumerate(selections):
        for head in range(HEADS):
            keys = k[selection, head // (HEADS // KV_HEADS)].double()
            values = v[selection, head // (HEADS // KV_HEADS)].double()
            weights = torch.softmax(keys @ q[row, head].double() * SCALING, dim=0)
            out[row, head] = weights @ values
    return out


def batch(mode, loc, rows, extend=None):
    return types.SimpleNamespace(
        forward_mode=mode,
        out_cache_loc=loc,
        req_pool_indices=torch.full((1,), 2, dtype=torch.int32),
        spec_info=None,
        attn_cp_metadata=None,
        extend_seq_lens_cpu=[extend or rows],
        seq_lens_cpu=[TOKENS],
        extend_seq_lens=torch.tensor([extend or rows], dtype=torch.int32),
    )


def fill(backend, layer, slots, k, v):
    """Write the context the way a forward does: through the backend, here as a decode of every token."""
    q = torch.zeros(TOKENS, HEADS, DIM)
    metadata = backend.forward_metadata
    backend.forward_metadata = QwenSparseAttnMetadata(
        sequence_lengths=torch.arange(1, TOKENS + 1, dtype=torch.int32),
        token_to_batch_idx=torch.arange(TOKENS, dtype=torch.int32),
        token_slot_table=metadata.token_slot_table[:1].expand(TOKENS, -1),
        indexer_metadata=None,
    )
    backend.forward_decode(
        q, k, v, layer, batch(ForwardMode.DECODE, slots, TOKENS), topk_indices=torch.zeros(TOKENS, 1, dtype=torch.int32)
    )
    backend.forward_metadata = metadata


def indices_of(rows):
    indices = torch.full((rows, TOKENS), -1, dtype=torch.int32)
    for row in range(rows):
        length = TOKENS - rows + 1 + row
        indices[row, :length] = torch.arange(length, dtype=torch.int32)
    return indices


def selections_of(rows):
    return [list(range(TOKENS - rows + 1 + row)) for row in range(rows)]


def test_pool_holds_scaled_clamped_values_and_callers_rows_stay_untouched():
    backend, pool, slots = make_backend(1)
    k, v = make_kv()
    k_before, v_before = k.clone(), v.clone()
    fill(backend, make_layer(), slots, k, v)
    assert torch.equal(k, k_before) and torch.equal(v, v_before)
    got_k = pool.get_key_buffer(LAYER)[slots].float()
    got_v = pool.get_value_buffer(LAYER)[slots].float()
    assert torch.equal(got_k, quantized(k, K_SCALE).float())
    assert torch.equal(got_v, quantized(v, V_SCALE).float())
    assert got_v[3, 0, 0].item() == 448.0


@pytest.mark.parametrize("scales", [(None, None), (1.0, 1.0)])
def test_unit_scales_stay_bit_identical(scales):
    backend, pool, slots = make_backend(2)
    k, v = make_kv()
    layer = make_layer(*scales)
    fill(backend, layer, slots, k, v)
    assert torch.equal(pool.get_key_buffer(LAYER)[slots].view(torch.uint8), k.to(FP8).view(torch.uint8))
    q = torch.randn(2, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend._forward_paged_attention(q, layer, batch(ForwardMode.DECODE, slots, 2), indices_of(2))
    metadata = backend.forward_metadata
    plain = backend_module.qsa_sparse_attention(
        q,
        pool.get_key_buffer(LAYER),
        pool.get_value_buffer(LAYER),
        backend._logical_to_physical(indices_of(2), metadata),
        SCALING,
    )
    assert torch.equal(got, plain.reshape(2, -1))


def assert_close(got, expected, name):
    got = got.reshape(expected.shape).double()
    error = ((got - expected).square().mean().sqrt() / expected.square().mean().sqrt()).item()
    assert error < 2e-3, f"{name}: relative RMS {error}"


def expected_output(q, k, v, rows):
    return reference(
        q, quantized(k, K_SCALE).float() * K_SCALE, quantized(v, V_SCALE).float() * V_SCALE, selections_of(rows)
    )


def test_decode_on_host():
    backend, _, slots = make_backend(3)
    k, v = make_kv()
    layer = make_layer()
    fill(backend, layer, slots, k, v)
    q = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend._forward_paged_attention(q, layer, batch(ForwardMode.DECODE, slots, 3), indices_of(3))
    assert_close(got, expected_output(q, k, v, 3), "decode on the host")


def test_extend_on_host():
    backend, _, slots = make_backend(3)
    k, v = make_kv()
    layer = make_layer()
    fill(backend, layer, slots, k, v)
    q = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend.forward_extend(
        q, k[-3:], v[-3:], layer, batch(ForwardMode.EXTEND, slots[-3:], 3), topk_indices=indices_of(3)
    )
    assert_close(got, expected_output(q, k, v, 3), "extend on the host")


def paged_decode(query, kv_cache, block_tables, seq_lens, bmm1_scale, bmm2_scale, **_):
    """Contract of FlashInfer's paged decode, one query row per table row."""
    keys, values = kv_cache  # [pages, KV heads, page, DIM]
    out = torch.empty_like(query)
    for row in range(query.shape[0]):
        length = int(seq_lens[row])
        flat_k = keys[block_tables[row].long()].permute(0, 2, 1, 3).reshape(-1, KV_HEADS, DIM)[:length]
        flat_v = values[block_tables[row].long()].permute(0, 2, 1, 3).reshape(-1, KV_HEADS, DIM)[:length]
        for head in range(HEADS):
            scores = flat_k[:, head // (HEADS // KV_HEADS)].float() @ query[row, head].float() * bmm1_scale
            out[row, head] = torch.softmax(scores, 0) @ flat_v[:, head // (HEADS // KV_HEADS)].float() * bmm2_scale
    return out


def test_paged_decode_on_device(monkeypatch):
    flashinfer_utils = types.ModuleType("flashinfer.utils")
    flashinfer_utils.get_trtllm_gen_multi_ctas_kv_counter_bytes = lambda *a: 16
    monkeypatch.setitem(sys.modules, "flashinfer", types.ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.utils", flashinfer_utils)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda *a: types.SimpleNamespace(multi_processor_count=188)
    )
    monkeypatch.setattr(backend_module, "is_sm100_supported", lambda *a: False)
    monkeypatch.setattr(backend_module, "_resolve_trtllm_sparse_decode", lambda: paged_decode)
    backend, _, slots = make_backend(3)
    k, v = make_kv()
    layer = make_layer()
    fill(backend, layer, slots, k, v)
    q = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend._forward_paged_attention(
        q.as_subclass(OnDevice), layer, batch(ForwardMode.DECODE, slots, 3), indices_of(3)
    )
    assert_close(torch.Tensor(got), expected_output(q, k, v, 3), "paged decode")


def test_fused_decode_writes_and_reads_scaled_rows(monkeypatch):
    """The fused path stores the new token itself and attends it in the same launch."""
    calls = []
    flashinfer_utils = types.ModuleType("flashinfer.utils")
    flashinfer_utils.get_trtllm_gen_multi_ctas_kv_counter_bytes = lambda *a: 16
    monkeypatch.setitem(sys.modules, "flashinfer", types.ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.utils", flashinfer_utils)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda *a: types.SimpleNamespace(multi_processor_count=188)
    )
    # An FP8 scratch: the packed rows are the pool's own elements.
    monkeypatch.setattr(backend_module, "is_sm100_supported", lambda *a: True)
    monkeypatch.setattr(
        backend_module, "_resolve_trtllm_sparse_decode", lambda: lambda **kw: calls.append(kw) or paged_decode(**kw)
    )
    backend, pool, slots = make_backend(1)
    k, v = make_kv()
    layer = make_layer()
    fill(backend, layer, slots, k, v)
    pool.get_key_buffer(LAYER).view(torch.uint8)[slots[-1]] = 0x7F  # NaN until the new token is stored
    q = torch.randn(1, HEADS, DIM, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = backend.forward_decode(
        q.as_subclass(OnDevice),
        k[-1:].bfloat16(),
        v[-1:].bfloat16(),
        layer,
        batch(ForwardMode.DECODE, slots[-1:], 1),
        topk_indices=indices_of(1),
    )
    assert len(calls) == 1 and calls[0]["kv_cache"][0].dtype == FP8
    k[-1], v[-1] = k[-1].bfloat16().float(), v[-1].bfloat16().float()
    assert torch.equal(pool.get_key_buffer(LAYER)[slots[-1]].float(), quantized(k[-1], K_SCALE).float())
    error = torch.Tensor(got).float().reshape(1, HEADS, DIM) - expected_output(q, k, v, 1)
    assert error.abs().max() < 0.01 * expected_output(q, k, v, 1).abs().max()


def test_varlen_fallback_on_device(monkeypatch):
    def varlen(q, k, v, cu_seqlens_k, softmax_scale, **_):
        out = torch.empty_like(q)
        for row in range(q.shape[0]):
            part = slice(int(cu_seqlens_k[row]), int(cu_seqlens_k[row + 1]))
            for head in range(HEADS):
                scores = k[part, head // (HEADS // KV_HEADS)].float() @ q[row, head].float() * softmax_scale
                out[row, head] = torch.softmax(scores, 0) @ v[part, head // (HEADS // KV_HEADS)].float()
        return out

    monkeypatch.setattr(backend_module, "_resolve_trtllm_sparse_decode", lambda: None)
    monkeypatch.setattr(backend_module, "_resolve_flash_attn_varlen_func", lambda: varlen)
    backend, _, slots = make_backend(3)
    k, v = make_kv()
    layer = make_layer()
    fill(backend, layer, slots, k, v)
    q = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend._forward_paged_attention(
        q.as_subclass(OnDevice), layer, batch(ForwardMode.DECODE, slots, 3), indices_of(3)
    )
    assert_close(torch.Tensor(got), expected_output(q, k, v, 3), "varlen decode")


def test_prefix_prefill_on_device(monkeypatch):
    monkeypatch.setattr(sparse_attn, "_get_best_config", lambda total_q: (16, 4, 2))
    backend, _, slots = make_backend(3)
    k, v = make_kv()
    layer = make_layer()
    fill(backend, layer, slots, k, v)
    q = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend.forward_extend(
        q.as_subclass(OnDevice),
        k[-3:],
        v[-3:],
        layer,
        batch(ForwardMode.EXTEND, slots[-3:], 3),
        topk_indices=indices_of(3),
    )
    assert_close(torch.Tensor(got), expected_output(q, k, v, 3), "prefill with a prefix")


def test_fresh_prefill_reads_unquantized_rows(monkeypatch):
    """No prefix: attention runs on the fresh rows, so writing the pool must not rescale them."""
    monkeypatch.setattr(sparse_attn, "_get_best_config", lambda total_q: (16, 4, 2))
    backend, _, slots = make_backend(TOKENS)
    k, v = make_kv()
    q = torch.randn(TOKENS, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend.forward_extend(
        q.as_subclass(OnDevice),
        k,
        v,
        make_layer(),
        batch(ForwardMode.EXTEND, slots, TOKENS),
        topk_indices=indices_of(TOKENS),
    )
    assert_close(torch.Tensor(got), reference(q, k, v, selections_of(TOKENS)), "prefill without a prefix")
