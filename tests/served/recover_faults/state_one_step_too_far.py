"""Deliberate fault: the committed recurrent state has seen one draft token more than was accepted."""

from stand_ins import after, replace


@after("sglang.srt.layers.attention.linear.gdn_recover_state")
def shift(module):
    commit = module.commit_recovered_states

    def wrong(state, window, indices, last_steps, *rest):
        commit(state, window, indices, (last_steps + 1).clamp(max=window.k.shape[2] - 1), *rest)

    replace(module, "commit_recovered_states", wrong)
