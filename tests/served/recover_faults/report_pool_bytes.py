"""Not a fault: print the exact bytes of the server's state pools, where its own log rounds to 0.01 GB."""

from stand_ins import after, replace


@after("sglang.srt.mem_cache.memory_pool")
def report(module):
    build = module.HybridReqToTokenPool.__init__

    def build_and_report(self, *arguments, **options):
        build(self, *arguments, **options)
        mamba, short, ngram = self.mamba_pool, self.short_conv_pool, self.ngram_pool
        cache = mamba.mamba_cache
        pools = {
            "conv": cache.conv,
            "ssm": [cache.temporal],
            "conv_window": getattr(cache, "intermediate_conv_window", None) and mamba._intermediate_conv_window_phys,
            "intermediate_ssm": [getattr(cache, "intermediate_ssm", None)],
            "recover_window": mamba.recover_window,
            "ple_short_conv": [short.conv_state],
            "ple_short_conv_window": [short.intermediate_conv_state],
            "ple_ngram": [ngram.context],
            "ple_ngram_window": [ngram.intermediate_context],
        }
        sizes = {n: sum(x.numel() * x.element_size() for x in xs or () if x is not None) for n, xs in pools.items()}
        print("POOL_BYTES", *(f"{name}={size}" for name, size in sizes.items() if size), flush=True)

    replace(module.HybridReqToTokenPool, "__init__", build_and_report)
