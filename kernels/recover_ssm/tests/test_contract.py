"""Bad input is a ValueError that names the tensor, what it is and what it needs; the operators refuse other devices."""

import pytest
import torch
from recover_ssm_cases import index, problem

from sm120.kernels._lib import capability
from sm120.kernels.recover_ssm import op, triton_recover

VERIFY = {
    "q of another dtype": (lambda p: dict(q=p.q.float()), "k is torch.bfloat16"),
    "k of another shape": (lambda p: dict(k=p.k[:, :3]), r"q has shape \(2, 4, 1, 64\), needs \(2, 3, 1, 64\)"),
    "v with three heads for two keys": (
        lambda p: dict(q=p.q.repeat(1, 1, 2, 1), k=p.k.repeat(1, 1, 2, 1), v=p.v.repeat(1, 1, 2, 1)[:, :, :3]),
        "HV = 3 heads, needs a multiple of the 2",
    ),
    "q with a strided last dim": (lambda p: dict(q=p.q.repeat(1, 1, 1, 2)[..., ::2]), "q has strides"),
    "a flat": (lambda p: dict(a=p.a.flatten(0, 1)), r"a has shape \(8, 2\), needs \(2, 4, 2\)"),
    "A_log per token": (lambda p: dict(A_log=p.A_log.expand(4, 2)), "A_log has shape"),
    "integer gates": (lambda p: dict(b=p.b.int()), "b is torch.int32"),
    "fp8 state": (lambda p: dict(state=p.state[0].to(torch.float8_e4m3fn)), "state is torch.float8_e4m3fn"),
    "transposed state": (lambda p: dict(state=p.state[0].transpose(-1, -2)), "each slot contiguous"),
    "state of one head": (lambda p: dict(state=p.state[0, :, :1]), "state has shape"),
    "indices for one request": (lambda p: dict(state_indices=p.slots[:1]), "state_indices has shape"),
    "float indices": (lambda p: dict(state_indices=p.slots.float()), "state_indices is torch.float32"),
    "strided indices": (lambda p: dict(state_indices=p.slots.repeat_interleave(2)[::2]), "state_indices has stride 2"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", VERIFY)
def test_verify_refuses(case):
    change, says = VERIFY[case]
    p = problem(2, 4)
    arguments = dict(
        q=p.q, k=p.k, v=p.v, a=p.a, b=p.b, A_log=p.A_log, dt_bias=p.dt_bias, state=p.state[0], state_indices=p.slots
    )
    with pytest.raises(ValueError, match=says):
        triton_recover.verify_output_only(**arguments | change(p))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (dict(T=17), r"T = 17 draft tokens, needs 1\.\.16"),
        (dict(K=96), "head dim K is 96"),
        (dict(V=32), "head dim V is 32"),
    ],
    ids=["T17", "K96", "V32"],
)
def test_verify_refuses_a_geometry(shape, says):
    with pytest.raises(ValueError, match=says):
        problem(1, **shape).verify()


@pytest.mark.gpu
def test_verify_refuses_a_window_that_is_too_short_or_of_another_dtype():
    p = problem(2, 4)
    p.window = triton_recover.DraftWindow(*(x[:, :, :3].contiguous() for x in p.window))
    with pytest.raises(ValueError, match="window holds 3 draft tokens, needs at least T = 4"):
        p.verify()
    p = problem(2, 4)
    p.window = p.window._replace(k=p.window.k.half())
    with pytest.raises(ValueError, match=r"window\.k is torch\.float16"):
        p.verify()
    p = problem(2, 4)
    p.window = p.window._replace(g=p.window.g.half())
    with pytest.raises(ValueError, match=r"window\.g is torch\.float16"):
        p.verify()


RECOVER = {
    "state without layers": (lambda p: dict(state=p.state[0]), "state has shape .* needs 5 dims"),
    "window of another depth": (
        lambda p: dict(window=p.window._replace(v=p.window.v[:, :, :3].contiguous())),
        r"window\.v has shape",
    ),
    "two-dimensional slots": (lambda p: dict(slots=p.slots[None]), "slots has shape"),
    "steps for one request": (
        lambda p: dict(last_steps=index([1])),
        r"last_steps has shape \(1,\), needs \(2,\)",
    ),
    "boolean steps": (lambda p: dict(last_steps=torch.tensor([True, False])), "last_steps is torch.bool"),
    "track slots alone": (lambda p: dict(track_slots=p.slots), "go together"),
    "rows for three requests": (lambda p: dict(window_rows=index([0, 1, 2])), "window_rows has shape"),
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("case", RECOVER)
def test_recover_refuses(case):
    change, says = RECOVER[case]
    p = problem(2, 4)
    arguments = dict(state=p.state, window=p.window, slots=p.slots, last_steps=index([1, 2]))
    with pytest.raises(ValueError, match=says):
        triton_recover.recover_accepted(**arguments | change(p))


@pytest.mark.gpu
def test_an_empty_batch_is_nothing():
    p = problem(2, 4)
    empty = (x[:0] for x in (p.q, p.k, p.v, p.a, p.b))
    out = triton_recover.verify_output_only(*empty, p.A_log, p.dt_bias, p.state[0], p.slots[:0])
    assert out.shape == (0, 4, 2, 64)
    before = p.state.clone()
    triton_recover.recover_accepted(p.state, p.window, p.slots[:0], index([]))
    assert torch.equal(p.state.view(torch.uint8), before.view(torch.uint8))


@pytest.mark.gpu
def test_the_operators_do_what_the_kernels_do():
    p = problem(2, 4)
    out, state = p.verify(), p.recover([1, 3], track_slots=[0, 2], track_steps=[0, -1])
    q = problem(2, 4)
    arguments = (q.q, q.k, q.v, q.a, q.b, q.A_log, q.dt_bias, q.state[0], q.slots)
    assert torch.equal(op.verify_output_only(*arguments, q.window.layer(0)), out)
    track = (index([0, 2]), index([0, -1]))
    op.recover_accepted(q.state, q.window, q.slots, index([1, 3]), *track)
    assert torch.equal(q.state.view(torch.uint8), state.view(torch.uint8))


def test_the_operators_trace_without_running():
    from torch._subclasses.fake_tensor import FakeTensorMode

    p = problem(2, 4, device="cpu")
    real = (p.q, p.k, p.v, p.a, p.b, p.A_log, p.dt_bias, p.state[0], p.slots, *p.window.layer(0))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in real]
        assert torch.ops.sm120.gdn_verify_output_only(*fake).shape == p.v.shape


@pytest.mark.parametrize("pair", [(9, 0), (10, 0), (12, 1)], ids=str)
def test_another_capability_is_refused_exactly(pair):
    with pytest.raises(ValueError, match="recover_ssm: device capability is"):
        capability.require(pair, "recover_ssm", op.CAPABILITIES)
    capability.require((12, 0), "recover_ssm", op.CAPABILITIES)
