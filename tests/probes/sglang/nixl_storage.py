"""Real NIXL storage on real files for the persistence probes: pools, a backend on a folder, page contents.

Everything is upstream's own: MambaPoolHost, MHATokenToKVPoolHost and HiCacheNixl with the POSIX plugin, on CPU tensors.
"""

from pathlib import Path

import pytest
import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MambaStateBufferInfo, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

try:
    import nixl._api  # noqa: F401
except ImportError:
    hicache_nixl = None
else:
    from sglang.srt.mem_cache.storage.nixl import hicache_nixl

needs_nixl = pytest.mark.skipif(hicache_nixl is None, reason="NIXL is not installed")
PAGE_SIZE = 4


def mamba_pool(slots: int, *, side_states: bool = False, aligned: bool = False) -> MambaPoolHost:
    """Host pool of `slots` recurrent states of 2 layers, fp32.

    A page is 2048 B temporal + 2048 B conv: O_DIRECT takes the page but not its parts, so it goes through bounce
    buffers. `side_states` adds int64 [slots, 2], so that the page is 4112 B. `aligned` makes both parts 4096 B.
    """
    temporal, conv = ((2, 16, 16), (512,)) if aligned else ((2, 8, 16), (256,))
    info = MambaStateBufferInfo(
        temporal=torch.zeros(2, slots, *temporal),
        conv=(torch.zeros(2, slots, *conv),),
        extra_checkpoint_buffers=(torch.zeros(slots, 2, dtype=torch.int64),) if side_states else (),
    )
    return MambaPoolHost(info, 1.0, 0, device_capacity=slots, pin_memory=False, layout="page_first")


def kv_pool(pages: int, layout: str = "page_first", head_dim: int = 128) -> MHATokenToKVPoolHost:
    """Host KV pool, 2 layers, 1 head, page of 4 tokens, fp32: one K (or V) page is 32 * head_dim bytes."""
    rows = pages * PAGE_SIZE
    k, v = (tuple(torch.zeros(rows, 1, head_dim) for _ in range(2)) for _ in range(2))
    info = MHABufferInfo(
        buffers=KVBuffers(
            layout=KVBufferLayout.NHD,
            k=k,
            v=v,
            k_data_ptrs=torch.tensor([b.data_ptr() for b in k], dtype=torch.uint64),
            v_data_ptrs=torch.tensor([b.data_ptr() for b in v], dtype=torch.uint64),
        ),
        page_size=PAGE_SIZE,
        head_num=1,
        head_dim=head_dim,
        v_head_dim=head_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        1.0,
        0,
        PAGE_SIZE,
        layout,
        pin_memory=False,
        device_capacity_tokens=rows,
        start_layer=0,
        end_layer=2,
        host_token_capacity=rows,
    )


def storage(folder: Path, monkeypatch, *, kv=None, mamba=None, direct: bool = True, model: str = "m", **config):
    """HiCacheNixl on `folder` (POSIX plugin, io_uring, cleaner off) with the given pools registered."""
    monkeypatch.setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", str(folder))
    config = {
        "plugin": {"posix": {"active": True, "use_uring": "true"}},
        "use_direct_io": direct,
        "l3_cleaner_enabled": False,
        **config,
    }
    store = hicache_nixl.HiCacheNixl(
        HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name=model,
            extra_config=config,
        )
    )
    if kv is not None:
        store.register_mem_pool_host(kv)
    if mamba is not None:
        store.register_mem_host_pool_v2(mamba, PoolName.MAMBA)
    return store


def fill(pool, pages: int, seed: int) -> list[torch.Tensor]:
    """Give every page of a pool its own random bytes (finite floats) and return them."""
    generator = torch.Generator().manual_seed(seed)
    expected = []
    for page in range(pages):
        sample = pool.get_data_page(page * pool.page_size)
        data = torch.randint(0, 60, (sample.numel(),), generator=generator).to(sample.dtype)
        pool.set_from_flat_data_page(page * pool.page_size, data)
        expected.append(pool.get_data_page(page * pool.page_size).clone())
    return expected


def wipe(pool, pages: int) -> None:
    for page in range(pages):
        blank = torch.zeros_like(pool.get_data_page(page * pool.page_size))
        pool.set_from_flat_data_page(page * pool.page_size, blank)


def pages_equal(pool, expected: list[torch.Tensor]) -> list[bool]:
    return [torch.equal(pool.get_data_page(i * pool.page_size), page) for i, page in enumerate(expected)]


def mamba_transfer(keys: list[str]) -> PoolTransfer:
    return PoolTransfer(PoolName.MAMBA, host_indices=torch.arange(len(keys)), keys=keys)


def kv_indices(keys: list[str]) -> torch.Tensor:
    return torch.arange(len(keys) * PAGE_SIZE)


def stored_files(folder: Path) -> list[Path]:
    """Published page files, in name order: those in bucket folders."""
    return sorted(path for path in folder.glob("[0-9a-f][0-9a-f]/*") if path.is_file())
