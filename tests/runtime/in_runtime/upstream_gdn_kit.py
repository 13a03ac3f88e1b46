"""Upstream's own cases for gated delta nets, which its wheel ships, on the CPU: its backends against its reference.

Upstream runs them on a GPU with bfloat16. Here the interpreter runs the kernels, with float16 (its bfloat16 is wrong),
which rounds finer, so chains get a fifteenth of upstream's tolerance: within that, a verify may read another request's
state. Trees keep it; their difference of 5e-2 is there on the release as well.
tests/runtime/test_in_runtime_long.py collects this file, on the patched tree and on the release.
"""

import functools
import unittest

import pytest
import torch
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.test.kits.attention_unittest.attention_methods import gdn_attention as kit
from sglang.test.kits.attention_unittest.runner_modes import speculative_target_verify_runner as runner

ON_CPU = dict(device="cpu", dtype=torch.float16)
CASES = [case for backend in ("triton", "torch_native") for case in kit.make_gdn_cases(backend)]
# The lengths of upstream's verify cases, and a window that the recovery's kernels have more than one token to replay in.
VERIFY = [((4, 7), (3, 3)), ((0, 16), (4, 4))]
CHAINS = ["eagle", "frozen_kv_mtp", "dflash", "ngram"]


@pytest.fixture(autouse=True)
def tolerance_of_float16(monkeypatch):
    for module in (kit, runner):
        for name in ("GDN_ATOL", "GDN_RTOL"):
            monkeypatch.setattr(module, name, 2e-3)


@pytest.fixture(autouse=True)
def random_state_of_no_gpu(monkeypatch):
    """The kit saves and restores the GPU's random state around its own draws."""
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)


def verify_case(prefix_lens, extend_lens, heads=(2, 2)):
    return kit.GDNAttentionCase(
        name="gdn_verify_on_cpu",
        backend="triton",
        forward_mode=ForwardMode.TARGET_VERIFY,
        num_k_heads=heads[0],
        num_v_heads=heads[1],
        page_size=16,
        prefix_lens=prefix_lens,
        extend_lens=extend_lens,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.backend}-{case.name}")
def test_prefill_and_decode(case):
    kit.run_gdn_attention_case(unittest.TestCase(), case, **ON_CPU)


@pytest.mark.parametrize("kind", CHAINS)
def test_verify_of_a_chain(kind):
    runner.run_gdn_eagle_verify_case(unittest.TestCase(), verify_case(*VERIFY[0]), topk=1, spec_kind=kind, **ON_CPU)


def test_verify_of_a_tree():
    case = verify_case((5, 6), (3, 3))
    runner.run_gdn_eagle_verify_case(unittest.TestCase(), case, topk=2, spec_kind="eagle", **ON_CPU)


def without_states(monkeypatch):
    """Make the kit's pool as --gdn-mtp-cache-mode none makes it."""
    pool = functools.partial(HybridReqToTokenPool, recover_window_dtype=ON_CPU["dtype"])
    monkeypatch.setattr(kit, "HybridReqToTokenPool", pool, raising=True)


@pytest.mark.parametrize("heads", [(2, 2), (1, 3)], ids=["ungrouped", "grouped"])
@pytest.mark.parametrize("lens", VERIFY, ids=["three", "four"])
def test_recover_verify_of_a_chain(monkeypatch, lens, heads):
    without_states(monkeypatch)
    case = verify_case(*lens, heads)
    runner.run_gdn_eagle_verify_case(
        unittest.TestCase(), case, topk=1, spec_kind="eagle", head_k_dim=64, head_v_dim=64, **ON_CPU
    )


def test_recover_verify_that_reads_another_slot_fails_the_kit(monkeypatch):
    """The kit has teeth for this mode, too."""
    from sglang.srt.layers.attention.linear import gdn_recover_state as recover

    without_states(monkeypatch)
    verify = recover.verify_output_only

    def wrong(q, k, v, a, b, A_log, dt_bias, state, slots, **rest):
        return verify(q, k, v, a, b, A_log, dt_bias, state, slots.flip(0), **rest)

    monkeypatch.setattr(recover, "verify_output_only", wrong)
    case = verify_case((4, 7), (3, 3))
    with pytest.raises(AssertionError, match="not close"):
        runner.run_gdn_eagle_verify_case(
            unittest.TestCase(), case, topk=1, spec_kind="eagle", head_k_dim=64, head_v_dim=64, **ON_CPU
        )
