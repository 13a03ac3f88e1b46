"""A state machine so plain that it can be believed: a slot is its conv window and state, replayed in float64."""

import torch


class NaiveSlot:
    """Conv window [layers][K-1, channels] and recurrent state [layers, HV, V, K] of one slot, float64."""

    def __init__(self, conv, state):
        self.conv, self.state = conv.clone(), state.clone()

    def copy(self):
        return NaiveSlot(self.conv, self.state)

    def advance(self, layers, tokens):
        """See `tokens` [layer](qkv [T, C], a [T, HV], b [T, HV]) one by one; return the outputs [layer][T, HV, V]."""
        outputs = []
        for i, (layer, (qkv, a, b)) in enumerate(zip(layers, tokens, strict=True)):
            rows = []
            for t in range(qkv.shape[0]):
                window = torch.cat([self.conv[i], qkv[t : t + 1].double()])  # [K, C]
                mixed = (window * layer.conv_weights.double().T).sum(0)
                mixed = (mixed * torch.sigmoid(mixed)).to(qkv.dtype).double()
                self.conv[i] = window[1:]
                rows.append(self._token(layer, i, mixed, a[t].double(), b[t].double()))
            outputs.append(torch.stack(rows))
        return outputs

    def _token(self, layer, i, mixed, a, b):
        q, k, v = mixed.split([layer.q_dim, layer.k_dim, layer.v_dim])
        group = layer.num_v_heads // layer.num_k_heads
        unit = lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
        q = unit(q.view(layer.num_k_heads, -1)).repeat_interleave(group, 0) * layer.head_k_dim**-0.5
        k = unit(k.view(layer.num_k_heads, -1)).repeat_interleave(group, 0)
        v = v.view(layer.num_v_heads, -1)
        g = -layer.A_log.double().exp() * torch.nn.functional.softplus(a + layer.dt_bias.double())
        S = self.state[i] * g.exp()[:, None, None]
        u = torch.sigmoid(b)[:, None] * (v - torch.einsum("hvk,hk->hv", S, k))
        self.state[i] = S + torch.einsum("hv,hk->hvk", u, k)
        return torch.einsum("hvk,hk->hv", self.state[i], q)
