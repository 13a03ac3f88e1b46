"""The two float64 forms are the same function, at the edges too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120.kernels.recover_ssm import reference as ref

H, HV, K, V = 2, 6, 8, 5


def inputs(T: int, seed: int = 0, H: int = H, HV: int = HV) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return dict(
        q=rng.standard_normal((T, H, K)),
        k=rng.standard_normal((T, H, K)),
        v=rng.standard_normal((T, HV, V)),
        a=rng.standard_normal((T, HV)),
        b=rng.standard_normal((T, HV)),
        A_log=rng.standard_normal(HV),
        dt_bias=rng.standard_normal(HV),
    )


def state(seed: int = 1, HV: int = HV) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((HV, V, K))


@pytest.mark.parametrize("T", range(1, 17))
def test_wy_form_equals_the_recurrence_for_every_accepted_length(T):
    S0, w = state(), ref.window(**inputs(T, seed=T))
    outputs, states = ref.recurrence(S0, w)
    np.testing.assert_allclose(ref.verify_output_only(S0, w), outputs, rtol=0, atol=1e-12)
    for accepted in range(1, T + 1):
        np.testing.assert_allclose(ref.recover_accepted(S0, w, accepted), states[accepted - 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", [(1, 1), (1, 4), (2, 6), (3, 3)], ids=str)
def test_grouped_value_heads(heads):
    h, hv = heads
    w = ref.window(**inputs(5, H=h, HV=hv))
    for head in range(hv):
        np.testing.assert_array_equal(w.k[:, head], w.k[:, head // (hv // h) * (hv // h)])
    S0 = state(HV=hv)
    np.testing.assert_allclose(ref.verify_output_only(S0, w), ref.recurrence(S0, w)[0], atol=1e-12)


def test_rejected_tokens_do_not_reach_the_recovered_state():
    x = inputs(8)
    S0, clean = state(), ref.window(**x)
    for accepted in range(1, 8):
        spoiled = {n: y.copy() for n, y in x.items()}
        for name in ("q", "k", "v", "a", "b"):
            spoiled[name][accepted:] = 1e3
        np.testing.assert_array_equal(
            ref.recurrence(S0, ref.window(**spoiled))[1][accepted - 1], ref.recurrence(S0, clean)[1][accepted - 1]
        )
        np.testing.assert_allclose(
            ref.recover_accepted(S0, ref.window(**spoiled), accepted),
            ref.recover_accepted(S0, clean, accepted),
            atol=1e-12,
        )


@pytest.mark.parametrize(
    "gate_input", [-1e4, -30.0, 0.0, 30.0, 1e4], ids=["keeps_all", "almost_all", "middle", "forgets", "forgets_all"]
)
@pytest.mark.parametrize("beta_input", [-800.0, 0.0, 800.0], ids=["beta0", "beta_half", "beta1"])
def test_extreme_gates_stay_finite_and_equal(gate_input, beta_input):
    x = inputs(8)
    x["a"][:], x["b"][:] = gate_input, beta_input
    with np.errstate(over="ignore"):
        w = ref.window(**x)
    assert (w.g <= 0).all()
    S0 = state()
    outputs, states = ref.recurrence(S0, w)
    assert np.isfinite(outputs).all()
    np.testing.assert_allclose(ref.verify_output_only(S0, w), outputs, atol=1e-12)
    np.testing.assert_allclose(ref.recover_accepted(S0, w, 8), states[-1], atol=1e-12)
    if beta_input == -800.0:  # nothing is written: the state only decays
        np.testing.assert_allclose(states[-1], np.exp(w.g.sum(0))[:, None, None] * S0, atol=1e-12)


def test_a_zero_key_writes_nothing():
    x = inputs(4)
    x["k"][2] = 0.0
    S0, w = state(), ref.window(**x)
    _, states = ref.recurrence(S0, w)
    np.testing.assert_allclose(states[2], np.exp(w.g[2])[:, None, None] * states[1], atol=1e-13)
    np.testing.assert_allclose(ref.recover_accepted(S0, w, 4), states[3], atol=1e-12)


def test_one_token_is_plain_decode():
    S0, w = state(), ref.window(**inputs(1))
    decayed = np.exp(w.g[0])[:, None, None] * S0
    u = w.beta[0][:, None] * (w.v[0] - np.einsum("hvk,hk->hv", decayed, w.k[0]))
    S1 = decayed + np.einsum("hv,hk->hvk", u, w.k[0])
    np.testing.assert_allclose(ref.recover_accepted(S0, w, 1), S1, atol=1e-13)
    np.testing.assert_allclose(ref.verify_output_only(S0, w)[0], np.einsum("hvk,hk->hv", S1, w.q[0]), atol=1e-13)


@pytest.mark.parametrize("accepted", [0, -1, 5])
def test_accepted_outside_the_window_is_refused(accepted):
    with pytest.raises(ValueError, match=r"needs 1\.\.4"):
        ref.recover_accepted(state(), ref.window(**inputs(4)), accepted)


def test_a_ratio_of_exponentials_is_told_apart():
    """Mutation twin of the one-exponential rule: the ratio form is 0/0 where the decay underflows."""
    x = inputs(4)
    x["a"][:] = 1e3
    x["A_log"][:] = 2.0
    w = ref.window(**x)
    G = np.cumsum(w.g, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.isnan(np.exp(G[3]) / np.exp(G[2])).any()
    assert np.isfinite(ref.verify_output_only(state(), w)).all()


@settings(max_examples=200, deadline=None)
@given(before=st.integers(0, 400), accepted=st.integers(1, 16), interval=st.sampled_from([1, 3, 64, 63, 65, 128]))
def test_boundary_step_lands_on_a_multiple_inside_the_accepted_tokens(before, accepted, interval):
    step = ref.boundary_step(before, accepted, interval)
    multiples = [m for m in range(before + 1, before + accepted + 1) if m % interval == 0]
    if not multiples:
        assert step == -1
    else:
        assert before + step + 1 == multiples[-1] and 0 <= step < accepted
