"""Not a fault: print the exact bytes of the server's state pools, where its own log rounds to 0.01 GB."""

from stand_ins import after, replace


@after("sglang.srt.mem_cache.memory_pool")
def report(module):
    build = module.MambaPool.__init__

    def build_and_report(self, **arguments):
        build(self, **arguments)
        size = lambda *tensors: sum(x.numel() * x.element_size() for x in tensors)  # noqa: E731
        cache = self.mamba_cache
        pools = {"conv": size(*cache.conv), "ssm": size(cache.temporal)}
        if getattr(cache, "intermediate_conv_window", None):
            pools["conv_window"] = size(*self._intermediate_conv_window_phys)
        if getattr(cache, "intermediate_ssm", None) is not None:
            pools["intermediate_ssm"] = size(cache.intermediate_ssm)
        if self.recover_window is not None:
            pools["recover_window"] = size(*self.recover_window)
        print("POOL_BYTES", *(f"{name}={value}" for name, value in sorted(pools.items())), flush=True)

    replace(module.MambaPool, "__init__", build_and_report)
