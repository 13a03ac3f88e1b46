"""Stands in for: CUDA's samplers of speculative verification, target-only, and the two renormalizations before them.

A hook of the proof layer for served tests that sample. The Triton platforms have no such sampler, so upstream takes the
argmax on them; a claim that passes through here says nothing about the CUDA kernel, only about what it is handed.
"""

import torch
from stand_ins.hook import after, replace


def tree_sampler(
    *,
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    uniform_samples,
    uniform_samples_for_final_sampling,
    target_probs,
    draft_probs,
    threshold_single,
    threshold_acc,
    deterministic,
):
    """Walk each tree from its root: take the child whose mass a coin falls into, or stop and sample what is left."""
    accept_index.fill_(-1)
    for b in range(candidates.shape[0]):
        node, depth = 0, 0
        while True:
            accept_index[b, depth] = retrive_index[b, node]
            probs = target_probs[b, node]
            child, mass, taken, refused = int(retrive_next_token[b, node]), 0.0, -1, []
            while child >= 0 and taken < 0:
                token = int(candidates[b, child])
                mass += float(probs[token])
                if float(uniform_samples[b, node]) < mass / threshold_acc or float(probs[token]) >= threshold_single:
                    taken = child
                else:
                    refused.append(token)
                    child = int(retrive_next_sibling[b, child])
            here = int(retrive_index[b, node])
            if taken < 0 or depth + 1 >= accept_index.shape[1]:
                left = probs.clone()
                left[refused] = 0
                edge = float(uniform_samples_for_final_sampling[b]) * float(left.sum())
                token = int((left.cumsum(0) <= edge).sum())
                predicts[here] = min(token, int(left.nonzero()[-1]))
                break
            predicts[here] = candidates[b, taken]
            node, depth = taken, depth + 1
        accept_token_num[b] = depth


def renorm_top_k(probs, top_ks):
    """Keep the k most probable tokens of each row and renormalize."""
    ranks = probs.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    kept = probs.masked_fill(ranks >= top_ks[:, None], 0)
    return kept / kept.sum(-1, keepdim=True)


def renorm_top_p(probs, top_ps):
    """Keep the smallest prefix of mass p of each row and renormalize."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered > top_ps[:, None], 0)
    kept = torch.zeros_like(probs).scatter_(-1, index, ordered)
    return kept / kept.sum(-1, keepdim=True)


@after("sglang.srt.speculative.eagle_utils")
@after("sglang.srt.speculative.dflash_utils")
def sample_on_a_cpu(module):
    replace(module, "tree_speculative_sampling_target_only", tree_sampler)
    replace(module, "top_k_renorm_prob", renorm_top_k)
    replace(module, "top_p_renorm_prob", renorm_top_p)
    if hasattr(module, "sampling_softmax"):
        module.sampling_softmax = lambda logits, temperatures: torch.softmax(logits / temperatures, dim=-1)
    if hasattr(module, "_DFLASH_SAMPLING_VERIFY_AVAILABLE"):
        module._DFLASH_SAMPLING_VERIFY_AVAILABLE = True
