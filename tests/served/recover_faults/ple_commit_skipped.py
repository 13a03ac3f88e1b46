"""Deliberate fault: the states and windows are committed, the PLE side states stay where the last prefill left them."""

from stand_ins import after, replace


@after("sglang.srt.layers.attention.hybrid_linear_attn_backend")
def skip(module):
    replace(module.HybridLinearAttnBackend, "_update_ple_state_after_mtp_verify", lambda *_, **__: None)
