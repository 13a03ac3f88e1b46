"""Gated delta rule in float64: one obvious recurrence, and a second independent form of the same maths.

Shapes, everywhere in this file: `T` draft tokens (the anchor is the first), `H` query/key heads, `HV` value heads
(`HV` a multiple of `H`; value head `hv` reads key head `hv // (HV // H)`), key width `K`, value width `V`.

    q, k  [T, H, K]     v  [T, HV, V]     a, b  [T, HV]     A_log, dt_bias  [HV]     S  [HV, V, K]

Source: Yang et al., *Gated Delta Networks* (2024), eq. 10 for the recurrence and section 3.3 for the WY form.
"""

from dataclasses import dataclass

import numpy as np

L2_EPS = 1e-6
SOFTPLUS_LINEAR_ABOVE = 20.0


@dataclass(frozen=True)
class Window:
    """The draft window after gating: everything a recurrence step needs, float64.

    `q`, `k` [T, HV, K] normalised and repeated over the heads of their group (`q` scaled by K^-1/2), `v` [T, HV, V],
    log-decay `g` [T, HV] (never positive), `beta` [T, HV] in [0, 1].
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray


def gate(a: np.ndarray, A_log: np.ndarray, dt_bias: np.ndarray) -> np.ndarray:
    """Log-decay `g = -exp(A_log) * softplus(a + dt_bias)`, [T, HV]."""
    x = a + dt_bias
    softplus = np.where(x > SOFTPLUS_LINEAR_ABOVE, x, np.log1p(np.exp(np.minimum(x, SOFTPLUS_LINEAR_ABOVE))))
    return -np.exp(A_log) * softplus


def window(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, a: np.ndarray, b: np.ndarray, A_log: np.ndarray, dt_bias: np.ndarray
) -> Window:
    """Gate, normalise and spread one request's draft tokens over its value heads (shapes at the top of the file)."""
    q, k, v, a, b, A_log, dt_bias = (np.asarray(x, dtype=np.float64) for x in (q, k, v, a, b, A_log, dt_bias))
    group = v.shape[1] // k.shape[1]
    unit = lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + L2_EPS)  # noqa: E731
    return Window(
        q=np.repeat(unit(q), group, axis=1) * k.shape[-1] ** -0.5,
        k=np.repeat(unit(k), group, axis=1),
        v=v,
        g=gate(a, A_log, dt_bias),
        beta=1.0 / (1.0 + np.exp(-b)),
    )


def recurrence(state: np.ndarray, w: Window) -> tuple[np.ndarray, np.ndarray]:
    """Run the token recurrence: outputs [T, HV, V] and the state after every token [T, HV, V, K].

    S~ = e^g S        u = beta (v - S~ k)        S = S~ + u k'        o = S q
    """
    S = np.asarray(state, dtype=np.float64).copy()
    outputs, states = np.empty_like(w.v), np.empty((w.v.shape[0], *S.shape))
    for t in range(w.v.shape[0]):
        for hv in range(w.v.shape[1]):
            S[hv] *= np.exp(w.g[t, hv])
            u = w.beta[t, hv] * (w.v[t, hv] - S[hv] @ w.k[t, hv])
            S[hv] += np.outer(u, w.k[t, hv])
            outputs[t, hv] = S[hv] @ w.q[t, hv]
        states[t] = S
    return outputs, states


def _head_wy(state: np.ndarray, w: Window, hv: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One head of the WY form: outputs [T, V], updates `u` [T, V], and the cumulated log-decay `G` [T]."""
    q, k, v, beta = w.q[:, hv], w.k[:, hv], w.v[:, hv], w.beta[:, hv]
    T = k.shape[0]
    G = np.cumsum(w.g[:, hv])
    # exp of a non-positive difference: a ratio e^G_t / e^G_s is 0/0 as soon as the decay underflows
    decay = np.exp(np.minimum(G[:, None] - G[None, :], 0.0))  # [T, T]
    L = np.tril(beta[:, None] * decay * (k @ k.T), -1)
    M = np.tril(decay * (q @ k.T))
    # (I + L)^-1 by the doubling product of a nilpotent matrix: exact for T <= 2^n
    inverse, power = np.eye(T) - L, -L
    for _ in range(max(0, (T - 1).bit_length() - 1)):
        power = power @ power
        inverse = inverse @ (np.eye(T) + power)
    Tm = inverse * beta[None, :]
    E = np.exp(G)[:, None]
    u = Tm @ v - (Tm @ (E * k)) @ state.T
    return (E * q) @ state.T + M @ u, u, G


def verify_output_only(state: np.ndarray, w: Window) -> np.ndarray:
    """Outputs of the whole window [T, HV, V] from the first state alone (WY form, no intermediate state)."""
    state = np.asarray(state, dtype=np.float64)
    return np.stack([_head_wy(state[hv], w, hv)[0] for hv in range(w.v.shape[1])], axis=1)


def recover_accepted(state: np.ndarray, w: Window, accepted: int) -> np.ndarray:
    """State [HV, V, K] after the first `accepted` tokens, from the first state alone (WY form).

    `accepted` counts the anchor, so 1 <= accepted <= T. Raises ValueError outside that range.
    """
    T = w.v.shape[0]
    if not 1 <= accepted <= T:
        raise ValueError(f"accepted is {accepted}, needs 1..{T}: the anchor token is always accepted")
    state = np.asarray(state, dtype=np.float64)
    result = np.empty_like(state)
    for hv in range(w.v.shape[1]):
        _, u, G = _head_wy(state[hv], w, hv)
        result[hv] = np.exp(G[accepted - 1]) * state[hv]
        for s in range(accepted):
            result[hv] += np.exp(G[accepted - 1] - G[s]) * np.outer(u[s], w.k[s, hv])
    return result


def boundary_step(length_before: int, accepted: int, interval: int) -> int:
    """Zero-based draft step whose state belongs to a radix checkpoint, or -1.

    The checkpoint is the last multiple of `interval` that the accepted tokens reach or cross.
    """
    if interval < 1 or accepted < 1 or length_before < 0:
        raise ValueError(
            f"length_before {length_before}, accepted {accepted}, interval {interval}: need >= 0, >= 1 and >= 1"
        )
    after = length_before + accepted
    if length_before // interval == after // interval:
        return -1
    return after // interval * interval - length_before - 1
