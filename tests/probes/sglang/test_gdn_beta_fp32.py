"""Decode and prefill must use beta = sigmoid(b) in fp32, as target verify does."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
import triton.language as tl
from sglang.kernels.ops.attention.fla import fused_recurrent
from sglang.kernels.ops.attention.fla.fused_recurrent import fused_recurrent_gated_delta_rule_packed_decode
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import fused_sigmoid_gating_delta_rule_update

H, HV, D = 1, 2, 64


@pytest.fixture(autouse=True)
def exp_is_looked_up_late(monkeypatch):
    """The interpreter replaces tl.exp while a kernel runs; a name that was bound at import keeps what cannot run there."""
    monkeypatch.setattr(fused_recurrent, "exp", lambda x: tl.exp(x))


def inputs():
    generator = torch.Generator().manual_seed(3)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    qkv = normal(2, 2 * H * D + HV * D).half()
    return qkv, normal(2, HV).half(), normal(2, HV).half(), normal(HV), normal(HV), normal(4, HV, D, D)


def decode(state, slots):
    qkv, a, b, A_log, dt_bias, _ = inputs()
    out = qkv.new_empty(2, 1, HV, D)
    fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv=qkv,
        a=a,
        b=b,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=D**-0.5,
        initial_state=state,
        out=out,
        ssm_state_indices=slots,
        use_qk_l2norm_in_kernel=True,
    )
    return out[:, 0]


def verify(state, slots):
    """The same two tokens through the kernel of target verify, which has always kept beta in fp32."""
    qkv, a, b, A_log, dt_bias, _ = inputs()
    q, k, v = qkv.split([H * D, H * D, HV * D], dim=-1)
    out = fused_sigmoid_gating_delta_rule_update(
        A_log=A_log,
        dt_bias=dt_bias,
        q=q.reshape(1, 2, H, D),
        k=k.reshape(1, 2, H, D),
        v=v.reshape(1, 2, HV, D),
        a=a,
        b=b,
        initial_state_source=state,
        initial_state_indices=slots,
        cu_seqlens=torch.arange(3, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
        softplus_beta=1.0,
        softplus_threshold=20.0,
    )
    return out[0]


def test_a_decoded_state_is_the_verified_state():
    slots = torch.tensor([2, 1], dtype=torch.int32)
    decoded, verified = inputs()[-1].clone(), inputs()[-1].clone()
    decode(decoded, slots)
    verify(verified, slots)
    error = (decoded - verified).norm() / verified.norm()
    assert error < 1e-6, f"decode and verify leave states {error:.1e} apart"


def test_prefill_gates_are_fp32():
    _, a, b, A_log, dt_bias, _ = inputs()
    g, beta = fused_gdn_gating(A_log, a, b, dt_bias)
    assert beta.dtype == torch.float32
    torch.testing.assert_close(beta[0], torch.sigmoid(b.double()).float(), rtol=2e-7, atol=0)
    want = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    torch.testing.assert_close(g[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [0.5, -0.5])
def test_the_published_example(value):
    """b = 0.5 gives 0.622459, and through bfloat16 0.621094; float16 loses less and loses too."""
    one = torch.full((1, HV), value).half()
    _, beta = fused_gdn_gating(torch.zeros(HV), one, one, torch.zeros(HV))
    assert abs(beta.flatten()[0].item() - torch.sigmoid(torch.tensor(value).double()).item()) < 1e-7
