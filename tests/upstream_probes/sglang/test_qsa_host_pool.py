"""Compressed QSA keys live in the host tier by the page of the KV tokens that they summarise (sglang#39893)."""

import os
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

PAGE, RATIO, PAGES = 8, 4, 6
LAYERS = [1, 3]


def rows_between_layers(src_layers, dst_layers, src_indices, dst_indices, page_size):
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[dst_indices] = src[src_indices]


def rows_to_host(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    for layer, src in enumerate(src_ptrs):
        dst_ptrs[0][dst_indices, layer, 0] = src[src_indices]


def rows_to_device(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    dst_ptrs[0][dst_indices] = src_ptrs[0][src_indices, layer_id, 0]


@pytest.fixture(autouse=True)
def copies(monkeypatch):
    """The three row copies that are CUDA's; which rows they are given is the pool's doing."""
    monkeypatch.setattr(memory_pool_host, "transfer_kv_direct", rows_between_layers, raising=False)
    monkeypatch.setattr(memory_pool_host, "transfer_kv_all_layer_direct_lf_pf", rows_to_host, raising=False)
    monkeypatch.setattr(memory_pool_host, "transfer_kv_per_layer_direct_pf_lf", rows_to_device, raising=False)


def device_pool(ratio=RATIO, dtype=torch.bfloat16):
    return QSATokenToKVPool(
        size=PAGE * (PAGES - 1),
        dtype=torch.bfloat16,
        page_size=PAGE,
        head_num=1,
        head_dim=16,
        full_attention_layer_ids=LAYERS,
        device="cpu",
        mamba_pool=None,
        qsa_index_kv_heads=2,
        qsa_index_head_dim=32,
        qsa_compress_ratio=ratio,
        qsa_token_topk=8,
        num_request_slots=3,
        qsa_indexer_dtype=dtype,
    )


def host_pool(pool, layout="layer_first", page_size=PAGE, **options):
    anchor = SimpleNamespace(page_size=page_size, page_num=PAGES + 2, layout=layout, device="cpu", pin_memory=False)
    return QSAIndexerPoolHost(pool, anchor, **options)


def tokens(*pages):
    """The full-KV slots of these pages."""
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def groups(pool, layer, page):
    """The compressed keys of a page, found by their rule: slot = token // ratio."""
    slots = tokens(page)[::RATIO] // RATIO
    return pool.get_qsa_compressed_k_buffer(layer)[slots].float()


def number(pool):
    for layer in LAYERS:
        buffer = pool.get_qsa_compressed_k_buffer(layer)
        buffer.copy_(torch.arange(buffer.shape[0]).view(-1, 1, 1).expand_as(buffer) + 32 * LAYERS.index(layer))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
@pytest.mark.parametrize("layout", ["layer_first", "page_first_direct"])
def test_compressed_keys_return_to_the_page_of_their_tokens(layout, dtype):
    pool = device_pool(dtype=dtype)
    number(pool)
    kept = {(layer, page): groups(pool, layer, page) for layer in LAYERS for page in range(PAGES)}
    host = host_pool(pool, layout)
    host.backup_from_device_all_layer(pool, tokens(6, 0), tokens(2, 4), "direct")
    for layer in LAYERS:
        pool.get_qsa_compressed_k_buffer(layer)[tokens(2, 4)[::RATIO] // RATIO] = 0
    for index in range(len(LAYERS)):
        host.load_to_device_per_layer(pool, tokens(6, 0), tokens(5, 3), index, "direct")
    for layer in LAYERS:
        assert torch.equal(groups(pool, layer, 5), kept[layer, 2])
        assert torch.equal(groups(pool, layer, 3), kept[layer, 4])
        assert torch.equal(groups(pool, layer, 1), kept[layer, 1])


@pytest.mark.parametrize("layout", ["layer_first", "page_first_direct"])
def test_a_storage_page_holds_every_layers_groups(layout):
    pool = device_pool()
    number(pool)
    kept = [groups(pool, layer, 2) for layer in LAYERS]
    host = host_pool(pool, layout)
    host.backup_from_device_all_layer(pool, tokens(1), tokens(2), "direct")
    page = host.get_data_page(PAGE).clone()
    assert page.numel() * page.element_size() == PAGE * host.get_size_per_token() == 2 * kept[0].numel() * 2
    host.set_from_flat_data_page(5 * PAGE, page)
    for index, layer in enumerate(LAYERS):
        host.load_to_device_per_layer(pool, tokens(5), tokens(4), index, "direct")
        assert torch.equal(groups(pool, layer, 4), kept[index])


def test_part_of_a_page_is_refused():
    pool = device_pool()
    host = host_pool(pool)
    with pytest.raises(ValueError, match="page-aligned"):
        host.backup_from_device_all_layer(pool, tokens(1)[:RATIO], tokens(2)[:RATIO], "direct")


def test_a_page_that_would_split_a_group_is_refused():
    with pytest.raises(ValueError, match="compress ratio"):
        host_pool(device_pool(), page_size=PAGE - 2)


def test_a_draft_pool_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="same page shape"):
        host_pool(device_pool(), mtp_draft_device_pools=(device_pool(dtype=torch.float8_e4m3fn),))
