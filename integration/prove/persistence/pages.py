"""For the runtime's Python: upstream's own host pools and NIXL storage on CPU tensors, without a server.

Imported by the scripts beside it; needs torch, sglang and nixl, and nothing of this project.
"""

import os
from pathlib import Path

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MambaStateBufferInfo, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl

TOKENS = 4  # per page


def kv_pool(pages: int, half_bytes: int, layout: str = "page_first") -> MHATokenToKVPoolHost:
    """Host KV pool whose pages are `half_bytes` of K and as much of V; one layer, one head, fp32."""
    head_dim, rows = half_bytes // (4 * TOKENS), pages * TOKENS
    k, v = (torch.zeros(rows, 1, head_dim) for _ in range(2))
    info = MHABufferInfo(
        buffers=KVBuffers(
            layout=KVBufferLayout.NHD,
            k=(k,),
            v=(v,),
            k_data_ptrs=torch.tensor([k.data_ptr()], dtype=torch.uint64),
            v_data_ptrs=torch.tensor([v.data_ptr()], dtype=torch.uint64),
        ),
        page_size=TOKENS,
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
        TOKENS,
        layout,
        pin_memory=False,
        device_capacity_tokens=rows,
        start_layer=0,
        end_layer=1,
        host_token_capacity=rows,
    )


def state_pool(slots: int, temporal_bytes: int, side_states: bool = True) -> MambaPoolHost:
    """Host pool of recurrent states: `temporal_bytes` of fp32, 96 B of convolution window, and 16 B of side state."""
    info = MambaStateBufferInfo(
        temporal=torch.zeros(1, slots, 1, 1, temporal_bytes // 4),
        conv=(torch.zeros(1, slots, 8, 3),),
        extra_checkpoint_buffers=(torch.zeros(slots, 2, dtype=torch.int64),) if side_states else (),
    )
    return MambaPoolHost(info, 1.0, 0, device_capacity=slots, pin_memory=False, layout="page_first")


def storage(folder: Path, queue: str = "uring", **config: object) -> HiCacheNixl:
    """HiCacheNixl on `folder`; `config` goes to the backend's extra config."""
    os.environ["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(folder)
    config = {
        "plugin": {"posix": {"active": True, f"use_{queue}": "true"}},
        "use_direct_io": True,
        "l3_cleaner_enabled": False,
        **config,
    }
    return HiCacheNixl(
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
            model_name="pages",
            extra_config=config,
        )
    )


def state_at(key: str, slot: int) -> PoolTransfer:
    """The recurrent state after page `key`, in host slot `slot`."""
    return PoolTransfer(PoolName.MAMBA, torch.tensor([slot]), keys=[key], hit_policy=PoolHitPolicy.TRAILING_PAGES)
