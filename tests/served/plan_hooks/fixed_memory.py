"""Not a fault: a device that has 4 GiB free before loading and 3 GiB after it, so that a pool's size can be foretold."""

from stand_ins import after, replace


@after("sglang.srt.distributed.bootstrap")
def before_loading(module):
    replace(module, "get_available_gpu_memory", lambda *arguments, **options: 4.0)


@after("sglang.srt.mem_cache.kv_cache_configurator")
def after_loading(module):
    replace(module, "get_available_gpu_memory", lambda *arguments, **options: 3.0)
