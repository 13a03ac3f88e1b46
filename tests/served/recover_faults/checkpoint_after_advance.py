"""Deliberate fault: the radix checkpoint is folded after the in-place advance, from a state that is already ahead."""

from stand_ins import after, replace


@after("sglang.srt.layers.attention.linear.gdn_recover_state")
def reorder(module):
    commit = module.commit_recovered_states

    def wrong(state, window, indices, last_steps, track_indices, track_steps, rows):
        commit(state, window, indices, last_steps, None, None, rows)
        if track_indices is not None:
            commit(state, window, indices, last_steps * 0 - 1, track_indices, track_steps, rows)

    replace(module, "commit_recovered_states", wrong)
