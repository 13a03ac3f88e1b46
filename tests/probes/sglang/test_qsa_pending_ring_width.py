"""A speculative window must not overwrite pending QSA index keys of the group it completes.

The real planner, ring and compressor run on the CPU over value-coded keys: the raw key of position `p` is the
constant `p`, so a compressed key is the mean of the positions it was pooled from.
"""

import inspect
import os
import types

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.srt.layers.attention.qsa.graph_metadata import launch_graph_metadata
from sglang.srt.layers.attention.qsa.qsa_indexer import QSAIndexer
from sglang.srt.layers.attention.qwen_sparse_attn_backend import QwenSparseAttnBackend
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

RATIO, PAGE, DIM, LAYER = 4, 64, 8, 3
REQUEST = 2
WRONG = -1000.0  # a rejected draft's key


def make_pool(window: int) -> QSATokenToKVPool:
    kwargs = dict(
        size=256,
        dtype=torch.bfloat16,
        page_size=PAGE,
        head_num=1,
        head_dim=8,
        full_attention_layer_ids=[LAYER],
        device="cpu",
        mamba_pool=types.SimpleNamespace(mem_usage=0, get_kv_size_bytes=lambda: (0, 0)),
        qsa_index_kv_heads=1,
        qsa_index_head_dim=DIM,
        qsa_compress_ratio=RATIO,
        qsa_token_topk=2048,
        num_request_slots=4,
    )
    if "qsa_max_window" in inspect.signature(QSATokenToKVPool.__init__).parameters:
        kwargs["qsa_max_window"] = window
    pool = QSATokenToKVPool(**kwargs)
    pool.qsa_key_state_buffer_pool = [b.float() for b in pool.qsa_key_state_buffer_pool]
    pool.qsa_compressed_k_buffer_pool = [b.float() for b in pool.qsa_compressed_k_buffer_pool]
    return pool


def make_backend(pool) -> QwenSparseAttnBackend:
    req_to_token = torch.zeros(4, 192, dtype=torch.int32)
    req_to_token[REQUEST] = PAGE + torch.arange(192, dtype=torch.int32)
    return QwenSparseAttnBackend(
        types.SimpleNamespace(
            token_to_kv_pool=pool,
            device="cpu",
            model_config=types.SimpleNamespace(hf_text_config=types.SimpleNamespace(), context_len=192),
            req_to_token_pool=types.SimpleNamespace(req_to_token=req_to_token),
        )
    )


class Indexer:
    """The real key-state and compression code, with norm and rotary left out."""

    layer_id, compress_ratio, index_kv_heads = LAYER, RATIO, 1
    update = QSAIndexer.update_key_state_and_compress
    _pending_ring_slots = QSAIndexer._pending_ring_slots
    _group_ring_slots = QSAIndexer._group_ring_slots

    def _use_fused_compress(self, pool):
        return False

    def _rope_from_matrix(self, positions):
        return positions

    def normalize_compressed_keys(self, keys, positions):
        return keys


def forward(backend, mode, positions, keys, prefix):
    """One forward over consecutive `positions`; `prefix` tokens were there before it."""
    rows = len(positions)
    batch = types.SimpleNamespace(
        forward_mode=mode,
        positions=torch.tensor(positions),
        mrope_positions=None,
        seq_lens=torch.tensor([positions[-1] + 1 if mode.is_extend() and not mode.is_target_verify() else prefix]),
        seq_lens_cpu=torch.tensor([positions[-1] + 1 if mode.is_extend() and not mode.is_target_verify() else prefix]),
        req_pool_indices=torch.tensor([REQUEST]),
        extend_seq_lens=None if mode.is_target_verify() else torch.tensor([rows]),
        input_ids=torch.zeros(rows, dtype=torch.long),
        out_cache_loc=torch.zeros(rows, dtype=torch.long),
        spec_info=types.SimpleNamespace(topk=1, draft_token_num=rows, num_tokens_per_req=rows),
        _original_forward_mode=None,
    )
    metadata = backend._metadata_from_forward_batch(batch).indexer_metadata
    Indexer().update(
        torch.tensor(keys, dtype=torch.float32).reshape(rows, 1, 1).expand(-1, 1, DIM),
        torch.tensor(positions),
        torch.tensor(positions),
        metadata,
    )


def compressed(pool, blocks):
    return pool.qsa_compressed_k_buffer_pool[0][PAGE // RATIO + torch.arange(blocks), 0, 0]


def generate(window: int, prompt: int, accepts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefill `prompt` tokens, then verify `window` tokens a step and keep `accepts[i]` of them."""
    pool = make_pool(window)
    backend = make_backend(pool)
    forward(backend, ForwardMode.EXTEND, list(range(prompt)), [float(p) for p in range(prompt)], 0)
    length = prompt
    for accept in accepts:
        positions = list(range(length, length + window))
        keys = [float(p) if p < length + accept else WRONG for p in positions]
        forward(backend, ForwardMode.TARGET_VERIFY, positions, keys, length)
        length += accept
    blocks = length // RATIO
    expected = torch.arange(blocks * RATIO, dtype=torch.float32).reshape(blocks, RATIO).mean(1)
    return compressed(pool, blocks), expected


@pytest.mark.parametrize("prompt", range(4, 8))
@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_every_acceptance_pools_its_own_group(window, prompt):
    for accept in range(1, window + 1):
        got, expected = generate(window, prompt, [accept] * 9)
        assert torch.equal(got, expected), f"window {window}, prompt {prompt}, accept {accept}"


@pytest.mark.parametrize("window", [5, 7, 8, 16])
def test_windows_beyond_the_ratio(window):
    failures = []
    for prompt in range(4, 8):
        for accept in (1, 3, window):
            try:
                got, expected = generate(window, prompt, [accept] * 6)
            except NotImplementedError as error:
                failures.append(f"window {window} refused: {error}")
                continue
            if not torch.equal(got, expected):
                failures.append(f"window {window}, prompt {prompt}, accept {accept}")
    assert not failures, failures[0]


def test_captured_graph_metadata_addresses_the_same_ring():
    """The device planner of a replayed verify names the slots that the eager planner names."""
    window, length = 4, 9
    pool = make_pool(window)
    backend = make_backend(pool)
    width = pool.qsa_key_state_buffer_pool[0].shape[0] // 4
    positions = length + torch.arange(window)

    def zeros(*shape, dtype=torch.int32):
        return torch.zeros(shape, dtype=dtype)

    indexer = types.SimpleNamespace(
        compress_ratio=RATIO,
        graph_compressed_page_table=zeros(window, 3),
        graph_compressed_lengths=zeros(window),
        graph_write_locs=zeros(window),
        graph_prefix_lengths=zeros(window),
        decode_logical_positions=zeros(window),
        pending_ring_slots=zeros(window, dtype=torch.int64),
        graph_ring_group_locs=zeros(window, RATIO),
    )
    metadata = types.SimpleNamespace(
        sequence_lengths=zeros(window), row_req_pool_indices=zeros(window), indexer_metadata=indexer
    )
    launch_graph_metadata(
        mode=1,
        bs=1,
        num_rows=window,
        seq_lens=torch.tensor([length]),
        req_pool_indices=torch.tensor([REQUEST]),
        extend_lens=None,
        extend_len=window,
        num_padding=0,
        metadata=metadata,
        req_to_token=backend.req_to_token,
        pool=pool,
    )
    assert indexer.pending_ring_slots.tolist() == (REQUEST * width + positions % width).tolist()
    members = positions[:, None] - torch.arange(RATIO - 1, -1, -1)
    assert indexer.graph_ring_group_locs.tolist() == (REQUEST * width + members % width).tolist()
    # The group completed at position 11 keeps its members apart from the window's last position, 12.
    group = set(indexer.graph_ring_group_locs[2].tolist())
    assert indexer.pending_ring_slots[3].item() not in group


def test_request_rows_of_the_transfer_descriptor_cover_the_ring():
    pool = make_pool(4)
    _, lengths, items = pool.get_qsa_pending_state_buf_infos()
    assert [length // 4 for length in lengths] == items
