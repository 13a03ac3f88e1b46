"""Stands in for: sgl_kernel.kvcacheio, the CUDA copies between the device pool and the host pool.

Three functions in plain PyTorch for `--hicache-io-backend direct` with the layouts `layer_first` and
`page_first_direct`. Indices are token slots; a page is `page_size` consecutive ones. The `kernel` backend has no
stand-in and fails by name.
"""

from types import CodeType, ModuleType
from typing import Any

from .hook import StandInRefused, after


@after("sglang.srt.mem_cache.pool_host.mha")
def for_attention_pools(module: ModuleType) -> None:
    _provide(module)


@after("sglang.srt.mem_cache.pool_host.mamba")
def for_mamba_pools(module: ModuleType) -> None:
    _provide(module)


def copy_layers(
    src_layers: list[Any], dst_layers: list[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Copy token rows between layer-first buffers, `[tokens, ...]` each."""
    del page_size
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[dst_indices.long()] = src[src_indices.long()]


def load_layer(
    src_ptrs: list[Any], dst_ptrs: list[Any], src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    """Copy one layer from page-first host buffers `[pages, layers, page_size, ...]` to `[tokens, ...]`."""
    pages = src_indices.long()[::page_size] // page_size
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        dst[dst_indices.long()] = src[pages, layer_id].flatten(0, 1)


def backup_all_layers(
    src_ptrs: list[Any], dst_ptrs: list[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Copy every layer `[tokens, ...]` into page-first host buffers; `src_ptrs` holds the layers buffer by buffer."""
    pages = dst_indices.long()[::page_size] // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, src in enumerate(src_ptrs):
        buffer, layer = dst_ptrs[number // layers], number % layers
        buffer[pages, layer] = src[src_indices.long()].unflatten(0, (-1, page_size))


_COPIES = {
    "transfer_kv_direct": copy_layers,
    "transfer_kv_per_layer_direct_pf_lf": load_layer,
    "transfer_kv_all_layer_direct_lf_pf": backup_all_layers,
}


def _provide(module: ModuleType) -> None:
    called = _global_names(module)
    for name, copy in _COPIES.items():
        if hasattr(module, name):
            raise StandInRefused(f"{module.__name__} has its own {name} now: delete this stand-in's copy")
        if name not in called:
            raise StandInRefused(f"nothing in {module.__name__} calls {name} any more")
        setattr(module, name, copy)


def _global_names(module: ModuleType) -> set[str]:
    """Names that the functions defined in `module` look up (upstream imports these copies on CUDA only)."""
    names: set[str] = set()
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            code = getattr(getattr(member, "__func__", member), "__code__", None)
            if isinstance(code, CodeType) and code.co_filename == module.__file__:
                names.update(code.co_names)
    return names
