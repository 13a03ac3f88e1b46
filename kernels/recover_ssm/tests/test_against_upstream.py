"""The compiled kernels against upstream's own compiled kernel in full mode: both as PTX for sm_120a, at one real layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sm120.kernels._kit import upstream
from sm120.kernels._kit.simulated_device import simulated_device
from sm120.kernels._ptx import triton_launch
from sm120.kernels._ptx.executor import Counts
from sm120.kernels.recover_ssm import bench, triton_recover

pytestmark = pytest.mark.xdist_group("ptx")
UPSTREAM = "kernels/ops/attention/linear/fused_sigmoid_gating_recurrent.py"
DRAFTS = 4
# What upstream's file asks about the machine, as an SM120 answers.
MACHINE = {
    "sglang.kernels.jit.utils": {"is_arch_support_pdl": True},
    "sglang.srt.utils": {
        "get_device_sm": 120,
        "is_cuda": True,
        "is_gfx95_supported": False,
        "is_hip": False,
        "is_sm90_supported": False,
    },
}


@functools.cache
def upstream_launcher() -> ModuleType:
    root = upstream.package_root("sglang") or next(
        iter(sorted((Path(__file__).resolve().parents[3] / "build" / "trees").glob("sglang-*/sglang"))), None
    )
    if root is None:
        pytest.skip("no sglang package, no unpacked release in build/trees, and SM120_SGLANG names none")
    return triton_launch.load(root / UPSTREAM, MACHINE)


@dataclass
class Answers:
    """Outputs [B, T, HV, V] and, after every draft, states [T, B, HV, V, K] of both kernels, and what they executed."""

    ours: torch.Tensor
    theirs: torch.Tensor
    our_states: torch.Tensor
    their_states: torch.Tensor
    launches: list[tuple[str, Counts]]


@functools.cache
def answers(dtype: torch.dtype, requests: int, heads: tuple[int, int], perturb: str = "none") -> Answers:
    full = upstream_launcher()
    H, HV = heads
    K = V = bench.HEADS["K"]
    B, T = requests, DRAFTS
    with triton_launch.triton_as_ptx(perturb=perturb) as launched, simulated_device():
        generator = torch.Generator("cuda").manual_seed(1)
        normal = lambda *shape: torch.randn(*shape, device="cuda", generator=generator)  # noqa: E731
        bf16 = lambda *shape: normal(B, T, *shape).bfloat16()  # noqa: E731
        q, k, v, a, b = bf16(H, K), bf16(H, K), bf16(HV, V), bf16(HV), bf16(HV)
        A_log, bias = normal(HV), normal(HV)
        state = normal(1, B + 1, HV, V, K).to(dtype)
        slots = torch.arange(1, B + 1, dtype=torch.int32, device="cuda")
        window = triton_recover.DraftWindow.zeros(
            1, B, T, num_k_heads=H, num_v_heads=HV, head_k_dim=K, head_v_dim=V, dtype=torch.bfloat16, device="cuda"
        )
        ours = triton_recover.verify_output_only(q, k, v, a, b, A_log, bias, state[0], slots, window=window.layer(0))
        recovered = []
        for last in range(T):
            advanced = state.clone()
            triton_recover.recover_accepted(advanced, window, slots, torch.full((B,), last, device="cuda"))
            recovered.append(advanced[0, 1:].cpu())
        kept = torch.zeros(B, T, HV, V, K, device="cuda", dtype=dtype)
        flat = lambda x: x.reshape(1, B * T, *x.shape[2:])  # noqa: E731
        theirs = full.fused_sigmoid_gating_delta_rule_update(
            A_log=A_log,
            a=a.reshape(B * T, HV),
            dt_bias=bias,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            q=flat(q),
            k=flat(k),
            v=flat(v),
            b=b.reshape(B * T, HV),
            initial_state_source=state[0],
            initial_state_indices=slots,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=torch.arange(0, B * T + 1, T, dtype=torch.int32, device="cuda"),
            disable_state_update=True,
            intermediate_states_buffer=kept,
            intermediate_state_indices=torch.arange(B, dtype=torch.int32, device="cuda"),
            cache_steps=T,
        )
        return Answers(
            ours.cpu(),
            theirs.reshape(ours.shape).cpu(),
            torch.stack(recovered),
            kept.transpose(0, 1).cpu(),
            launched.launches,
        )


def share_that_differs(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x != y).double().mean())


def distance(x: torch.Tensor, y: torch.Tensor) -> float:
    """Relative RMS."""
    return float((x.double() - y.double()).norm() / y.double().norm())


def check(both: Answers, dtype: torch.dtype) -> None:
    """Not bit for bit: upstream's program takes 32 value columns and ours 8, and the compiler adds them up otherwise."""
    fp32 = dtype == torch.float32
    assert share_that_differs(both.ours, both.theirs) < 2e-4
    assert distance(both.ours, both.theirs) < 1e-5
    assert share_that_differs(both.our_states, both.their_states) < (0.02 if fp32 else 1e-4)
    assert distance(both.our_states, both.their_states) < (3e-8 if fp32 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_two_heads_of_one_request(dtype):
    check(answers(dtype, 1, (1, 3)), dtype)


def test_equal_bits_are_not_claimed_for_fp32_states():
    """The interpreter adds in one order whatever the tile and so finds equal bits; the compiled kernels do not."""
    both = answers(torch.float32, 1, (1, 3))
    assert share_that_differs(both.our_states, both.their_states) > 0


def test_a_state_one_draft_further_is_noticed():
    both = answers(torch.float32, 1, (1, 3))
    late = Answers(both.ours, both.theirs, both.our_states.roll(1, 0), both.their_states, [])
    with pytest.raises(AssertionError):
        check(late, torch.float32)


@pytest.mark.parametrize("perturb", ["up", "down", "either"])
def test_no_result_rests_on_the_last_bits_of_an_approximation(perturb):
    exact, moved = answers(torch.float32, 1, (1, 3)), answers(torch.float32, 1, (1, 3), perturb)
    assert distance(moved.our_states, exact.our_states) < 2e-6
    assert distance(moved.ours, exact.ours) < 2e-3  # one rounding to bf16


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_whole_layer_of_four_requests(dtype):
    both = answers(dtype, bench.BATCH, (bench.HEADS["H"], bench.HEADS["HV"]))
    check(both, dtype)
    sectors = {name: counts.global_sectors for name, counts in both.launches}
    assert sectors["_verify_kernel"] < 0.5 * sectors["fused_sigmoid_gating_delta_rule_update_kernel"]
