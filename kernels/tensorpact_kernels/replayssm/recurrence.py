"""The gated delta rule as it is defined, token by token: what every form of KDA decode has to equal."""

import torch
from torch import Tensor


def naive_kda_recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule over one sequence, with a whole matrix for each step and no ring.

    Args:
        q: Queries, ``[T, H, K]``.
        k: Keys, ``[T, H, K]``.
        v: Values, ``[T, HV, V]``; value head ``i`` belongs to key head ``i // (HV // H)``.
        g: Natural log of the decay of each key channel, ``[T, HV, K]``.
        beta: Write strengths, ``[T, HV]``.
        state: State before the first token, ``[HV, V, K]``.
        scale: Factor on the queries.

    Returns:
        Outputs ``[T, HV, V]`` and the state after the last token.
    """
    tokens, heads = v.shape[:2]
    group = heads // k.shape[1]
    out = torch.zeros_like(v)
    state = state.clone()
    for t in range(tokens):
        for head in range(heads):
            decayed = state[head] @ torch.diag(g[t, head].exp())
            key = k[t, head // group]
            correction = beta[t, head] * (v[t, head] - decayed @ key)
            state[head] = decayed + torch.outer(correction, key)
            out[t, head] = state[head] @ (q[t, head // group] * scale)
    return out, state
