"""Deliberate fault: the committed convolution window ends one draft token too late."""

from stand_ins import after, replace


@after("sglang.srt.layers.attention.hybrid_linear_attn_backend")
def shift(module):
    scatter = module.scatter_mamba_states_after_mtp_verify

    def wrong(caches, indices, last_steps, *rest, **more):
        latest = caches.intermediate_conv_window[0].shape[2] - 1
        scatter(caches, indices, (last_steps + 1).clamp(max=latest), *rest, **more)

    replace(module, "scatter_mamba_states_after_mtp_verify", wrong)
