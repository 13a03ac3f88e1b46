"""FP8 QSA pools at unit scale: prefill behind a cached prefix attends to the dequantised keys and values (sglang#38855)."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.srt.layers.attention.qsa import sparse_attn
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from test_qsa_calibrated_kv_scales import (
    DIM,
    FP8,
    HEADS,
    LAYER,
    OnDevice,
    assert_close,
    batch,
    fill,
    indices_of,
    make_backend,
    make_kv,
    make_layer,
    reference,
    selections_of,
)

ROWS = 3


@pytest.mark.parametrize("scales", [(None, None), (1.0, 1.0)], ids=["absent", "one"])
def test_prefill_behind_a_prefix_attends_to_dequantised_rows(monkeypatch, scales):
    monkeypatch.setattr(sparse_attn, "_get_best_config", lambda total_q: (16, 4, 2))
    backend, pool, slots = make_backend(ROWS)
    k, v = make_kv()
    layer = make_layer(*scales)
    fill(backend, layer, slots, k, v)
    assert pool.get_key_buffer(LAYER).dtype == FP8
    q = torch.randn(ROWS, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    got = backend.forward_extend(
        q.as_subclass(OnDevice),
        k[-ROWS:],
        v[-ROWS:],
        layer,
        batch(ForwardMode.EXTEND, slots[-ROWS:], ROWS),
        topk_indices=indices_of(ROWS),
    )
    expected = reference(q, k.to(FP8).float(), v.to(FP8).float(), selections_of(ROWS))
    assert_close(torch.Tensor(got), expected, "prefill at unit scale")
