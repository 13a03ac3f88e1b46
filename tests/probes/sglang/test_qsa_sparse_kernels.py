"""`--qsa-sparse-kernels paged` serves QSA on kernels that read the pool in place, and nothing changes without it.

Capability and accelerator are stood in for; the backend, the pool and the kernels are the real ones, the kernels in
Triton's interpreter with fp16 or fp32 queries (it computes bf16 wrongly).
"""

import argparse
import inspect
import os
import types

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.srt.layers.attention import qwen_sparse_attn_backend as backend_module
from sglang.srt.layers.attention.qsa import kernel as qsa_kernel
from sglang.srt.layers.attention.qwen_sparse_attn_backend import QwenSparseAttnBackend, QwenSparseAttnMetadata
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.server_args import ServerArgs

FP8 = torch.float8_e4m3fn
LAYER, HEADS, KV_HEADS, DIM, TOKENS = 0, 24, 2, 128, 70
SCALING = DIM**-0.5


class OnDevice(torch.Tensor):
    """A CPU tensor that takes the accelerator branches."""

    @property
    def is_cuda(self):
        return True


def serve_paged(monkeypatch):
    """As on an SM120 device with the flag set; the kernels that must not run raise."""
    try:
        from sglang.srt.layers.attention.qsa import paged_kernels
    except ImportError:
        pytest.fail("there are no paged QSA kernels to select")
    monkeypatch.setattr(paged_kernels, "is_sm120", lambda: True)
    monkeypatch.setattr(paged_kernels, "get_model", lambda: types.SimpleNamespace(qsa_sparse_kernels="paged"))

    def refuse(*args, **kwargs):
        raise AssertionError("a gathering kernel ran")

    for name in (
        "sparse_gqa_fwd_interface_triton",
        "sparse_gqa_fwd_interface_triton_ck",
        "pack_qsa_prefill_kv",
        "qwen_sparse_kv_extraction_compact_triton",
        "fused_kv_prepare",
        "qsa_sparse_attention",
    ):
        monkeypatch.setattr(backend_module, name, refuse)


def make(rows: int, dtype: torch.dtype):
    """A backend over a real pool; one request's tokens lie in permuted slots of it."""
    pool = MHATokenToKVPool(
        size=192,
        page_size=64,
        dtype=dtype,
        head_num=KV_HEADS,
        head_dim=DIM,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    generator = torch.Generator().manual_seed(3)
    slots = 1 + torch.randperm(190, generator=generator)[:TOKENS]
    req_to_token = torch.zeros(3, 128, dtype=torch.int32)
    req_to_token[2, :TOKENS] = slots
    backend = QwenSparseAttnBackend(
        types.SimpleNamespace(
            token_to_kv_pool=pool,
            device="cpu",
            model_config=types.SimpleNamespace(hf_text_config=types.SimpleNamespace(), context_len=128),
            req_to_token_pool=types.SimpleNamespace(req_to_token=req_to_token),
        )
    )
    backend.forward_metadata = QwenSparseAttnMetadata(
        sequence_lengths=torch.arange(TOKENS - rows + 1, TOKENS + 1, dtype=torch.int32),
        token_to_batch_idx=torch.arange(rows, dtype=torch.int32),
        token_slot_table=req_to_token[2:3].expand(rows, -1),
        indexer_metadata=None,
        row_req_pool_indices=torch.full((rows,), 2, dtype=torch.int32),
    )
    k = torch.randn(TOKENS, KV_HEADS, DIM, generator=generator)
    v = torch.randn(TOKENS, KV_HEADS, DIM, generator=generator)
    if dtype != FP8:
        k, v = k.to(dtype), v.to(dtype)
    for name, x in (("k_buffer", k), ("v_buffer", v)):
        store = getattr(pool, name)[0]
        if dtype == FP8:
            store.view(torch.uint8).fill_(0x7F)
            store.view(torch.uint8)[slots] = x.to(FP8).view(torch.uint8)
        else:
            store.fill_(float("nan"))
            store[slots] = x
    layer = types.SimpleNamespace(
        layer_id=LAYER,
        tp_q_head_num=HEADS,
        tp_k_head_num=KV_HEADS,
        tp_v_head_num=KV_HEADS,
        head_dim=DIM,
        qk_head_dim=DIM,
        v_head_dim=DIM,
        scaling=SCALING,
        k_scale_float=0.25 if dtype == FP8 else None,
        v_scale_float=0.5 if dtype == FP8 else None,
    )
    q = torch.randn(rows, HEADS, DIM, generator=generator)
    return backend, layer, slots, q if dtype == FP8 else q.to(dtype), k, v


def batch(mode, loc, rows, prefix):
    return types.SimpleNamespace(
        forward_mode=mode,
        out_cache_loc=loc,
        req_pool_indices=torch.tensor([2]),
        spec_info=None,
        attn_cp_metadata=None,
        extend_seq_lens_cpu=[rows],
        seq_lens_cpu=torch.tensor([prefix + rows]),
        extend_seq_lens=torch.tensor([rows], dtype=torch.int32),
    )


def reference(q, k, v, selections):
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row, selection in enumerate(selections):
        for head in range(HEADS):
            keys, values = (x[selection, head // (HEADS // KV_HEADS)].double() for x in (k, v))
            out[row, head] = torch.softmax(keys @ q[row, head].double() * SCALING, 0) @ values
    return out


def assert_close(got, expected, tolerance):
    got = torch.Tensor(got).double().reshape(expected.shape)
    error = ((got - expected).square().mean().sqrt() / expected.square().mean().sqrt()).item()
    assert error < tolerance, f"relative RMS {error}"


@pytest.mark.parametrize("dtype", [torch.float16, FP8], ids=["fp16", "fp8"])
def test_decode_rows_read_the_pool(monkeypatch, dtype):
    serve_paged(monkeypatch)
    backend, layer, slots, q, k, v = make(3, dtype)
    indices = torch.full((3, 80), -1, dtype=torch.int32)
    selections = [[0, 5, 67], list(range(69)), [3, 69, 1]]
    for row, selection in enumerate(selections):
        indices[row, 2 : 2 + len(selection)] = torch.tensor(selection, dtype=torch.int32)
    indices[0, 40] = 68  # a drafted token beyond this row's length
    got = backend._forward_paged_attention(
        q.as_subclass(OnDevice), layer, batch(ForwardMode.DECODE, slots[-3:], 3, TOKENS - 3), indices
    )
    if dtype == FP8:
        k, v = k.to(FP8).float() * 0.25, v.to(FP8).float() * 0.5
    assert_close(got, reference(q, k, v, selections), 1e-3)


def test_prefill_with_a_prefix_reads_the_pool(monkeypatch):
    serve_paged(monkeypatch)
    backend, layer, slots, q, k, v = make(3, torch.float16)
    backend.forward_metadata = QwenSparseAttnMetadata(
        sequence_lengths=torch.tensor([TOKENS], dtype=torch.int32),
        token_to_batch_idx=torch.zeros(3, dtype=torch.int32),
        token_slot_table=backend.forward_metadata.token_slot_table[:1],
        indexer_metadata=None,
        row_req_pool_indices=torch.tensor([2]),
    )
    selections = [[*range(0, 60), 66, 67], [1, 68], list(range(70))]
    indices = torch.full((3, 80), -1, dtype=torch.int32)
    for row, selection in enumerate(selections):
        indices[row, : len(selection)] = torch.tensor(selection, dtype=torch.int32)
    got = backend.forward_extend(
        q.as_subclass(OnDevice),
        k[-3:],
        v[-3:],
        layer,
        batch(ForwardMode.EXTEND, slots[-3:], 3, TOKENS - 3),
        topk_indices=indices,
    )
    assert_close(got, reference(q, k, v, selections), 1e-3)


def test_prefill_without_a_prefix_reads_the_fresh_rows(monkeypatch):
    """An FP8 pool: the first chunk attends what the projections gave, not what the pool rounded."""
    serve_paged(monkeypatch)
    backend, layer, slots, q, k, v = make(TOKENS, FP8)
    rows = 6
    backend.forward_metadata = QwenSparseAttnMetadata(
        sequence_lengths=torch.tensor([rows], dtype=torch.int32),
        token_to_batch_idx=torch.zeros(rows, dtype=torch.int32),
        token_slot_table=backend.forward_metadata.token_slot_table,
        indexer_metadata=None,
        row_req_pool_indices=torch.tensor([2]),
    )
    indices = torch.where(torch.arange(rows)[None] <= torch.arange(rows)[:, None], torch.arange(rows)[None], -1)
    got = backend.forward_extend(
        q[:rows].as_subclass(OnDevice),
        k[:rows].clone(),
        v[:rows].clone(),
        layer,
        batch(ForwardMode.EXTEND, slots[:rows], rows, 0),
        topk_indices=indices.to(torch.int32),
    )
    assert_close(got, reference(q[:rows], k, v, [list(range(i + 1)) for i in range(rows)]), 1e-5)


def test_top_k_breaks_ties_by_the_smallest_index(monkeypatch):
    serve_paged(monkeypatch)
    logits = torch.ones(2, 700)
    logits[0, 600:650] = 2.0
    starts, ends = torch.tensor([0, 20]), torch.tensor([700, 640])
    got = qsa_kernel.qsa_fast_topk(logits, starts, ends, 512)
    assert got[0].tolist() == [*range(462), *range(600, 650)]
    assert got[1].tolist() == list(range(512))


def test_unsupported_shapes_are_refused(monkeypatch):
    serve_paged(monkeypatch)
    backend, layer, slots, q, _, _ = make(3, torch.float16)
    layer.tp_k_head_num = 1
    indices = torch.zeros(3, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="24"):
        backend._forward_paged_attention(
            q.as_subclass(OnDevice), layer, batch(ForwardMode.DECODE, slots[-3:], 3, TOKENS - 3), indices
        )


def test_the_flag_exists_and_is_off_by_default():
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    assert "--qsa-sparse-kernels" in known
    assert parser.get_default("qsa_sparse_kernels") == "default"


def test_the_flag_moves_no_positional_argument():
    """ServerArgs can be called with positions: a new field may only come after those of the release."""
    names = list(inspect.signature(ServerArgs).parameters)
    assert "qsa_sparse_kernels" in names
    assert names.index("qsa_sparse_kernels") > names.index("return_aux_hidden_state_layer_ids")


@pytest.mark.parametrize(("sm120", "flag"), [(True, "default"), (False, "paged")])
def test_other_devices_and_the_default_keep_their_path(monkeypatch, sm120, flag):
    """SM121 and the rest are not SM120: the gate is exact, and the flag alone does not open it."""
    try:
        from sglang.srt.layers.attention.qsa import paged_kernels
    except ImportError:
        pytest.fail("there are no paged QSA kernels to select")
    monkeypatch.setattr(paged_kernels, "is_sm120", lambda: sm120)
    monkeypatch.setattr(paged_kernels, "get_model", lambda: types.SimpleNamespace(qsa_sparse_kernels=flag))
    assert not paged_kernels.use_paged_kernels()
    backend, layer, slots, q, _, _ = make(1, torch.float16)
    calls = []
    monkeypatch.setattr(
        backend_module, "qsa_sparse_attention", lambda q, *a, **k: calls.append(1) or torch.zeros_like(q)
    )
    backend._forward_paged_attention(
        q, layer, batch(ForwardMode.DECODE, slots[-1:], 1, TOKENS - 1), torch.zeros(1, 4, dtype=torch.int32)
    )
    assert calls
