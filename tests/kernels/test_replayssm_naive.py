"""The naive KDA decode against the plain recurrence, which runs over the whole sequence and knows no ring."""

import math

import pytest
import torch

from tensorpact_kernels.replayssm.naive import (
    naive_kda_recurrence,
    naive_packed_decode,
    naive_packed_decode_,
    naive_replayssm_decode,
    naive_replayssm_decode_,
)

SLOTS, STEPS = 6, 26
ROWS = [4, -1, 1, 3]
"""Slots of the batch: three sequences and a padding row."""


def heads_of(group):
    return {1: (3, 3), 2: (2, 4), 4: (1, 4)}[group]


class Sequences:
    """Tokens of every row and step, and the same quantities worked out one number at a time."""

    def __init__(self, seed, group=2, dim_k=6, dim_v=10, lower_bound=None, normalise=True, dtype=torch.float64):
        gen = torch.Generator().manual_seed(seed)
        self.key_heads, self.heads = heads_of(group)
        self.dim_k, self.dim_v = dim_k, dim_v
        self.lower_bound, self.normalise, self.dtype = lower_bound, normalise, dtype
        width = 2 * self.key_heads * dim_k + self.heads * dim_v

        def draw(*shape):
            return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

        self.mixed_qkv = draw(STEPS, len(ROWS), width)
        self.a = draw(STEPS, len(ROWS), self.heads, dim_k)
        # Beyond 20 the softplus is the identity; far below it the gate keeps nearly everything.
        self.a[3, 0, 0, 0], self.a[4, 2, 1, 1], self.a[5, 3, 0, 2] = 25.0, -40.0, 20.0
        self.b = draw(STEPS, len(ROWS), self.heads)
        self.A_log = draw(self.heads) - 1.5
        self.dt_bias = draw(self.heads, dim_k)
        self.scale = dim_k**-0.5
        self.state = draw(SLOTS, self.heads, dim_v, dim_k)

    def expected(self, row, round_beta=False):
        """Outputs of all steps and the state behind each of them, by the recurrence in float64."""
        tokens = [self._token(t, row, round_beta) for t in range(STEPS)]
        q, k, v, g, beta = (torch.stack(x) for x in zip(*tokens, strict=True))
        state = self.state[ROWS[row]].double()
        outs, states = [], []
        for t in range(STEPS):
            part = slice(t, t + 1)
            out, state = naive_kda_recurrence(q[part], k[part], v[part], g[part], beta[part], state, self.scale)
            outs.append(out[0])
            states.append(state)
        return torch.stack(outs), torch.stack(states)

    def _token(self, t, row, round_beta):
        packed = self.mixed_qkv[t, row].double()
        size = self.key_heads * self.dim_k
        q = packed[:size].reshape(self.key_heads, self.dim_k)
        k = packed[size : 2 * size].reshape(self.key_heads, self.dim_k)
        v = packed[2 * size :].reshape(self.heads, self.dim_v)
        if self.normalise:
            q, k = (torch.stack([x / math.sqrt(float(x @ x) + 1e-6) for x in heads]) for heads in (q, k))
        g = torch.empty(self.heads, self.dim_k, dtype=torch.float64)
        for head in range(self.heads):
            rate = math.exp(float(self.A_log[head]))
            for c in range(self.dim_k):
                x = float(self.a[t, row, head, c]) + float(self.dt_bias[head, c])
                if self.lower_bound is not None:
                    g[head, c] = self.lower_bound / (1 + math.exp(-rate * x))
                else:
                    g[head, c] = -rate * (x if x > 20 else math.log1p(math.exp(x)))
        beta = torch.tensor([1 / (1 + math.exp(-float(x))) for x in self.b[t, row]], dtype=torch.float64)
        return q, k, v, g, beta.to(self.dtype).double() if round_beta else beta

    def call(self, t, **changed):
        return {
            "mixed_qkv": self.mixed_qkv[t],
            "a": self.a[t],
            "b": self.b[t],
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
            "scale": self.scale,
            "ssm_state_indices": torch.tensor(ROWS),
            "use_qk_l2norm_in_kernel": self.normalise,
            "lower_bound": self.lower_bound,
            **changed,
        }

    def rings(self, length, fill=math.nan):
        def ring(heads, columns, dtype):
            return torch.full((SLOTS, heads, length, columns), fill, dtype=dtype)

        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return {
            "d_cache": ring(self.heads, self.dim_v, self.dtype),
            "k_cache": ring(self.key_heads, self.dim_k, self.dtype),
            "g_cache": ring(self.heads, self.dim_k, wide),
        }

    def out(self, fill=math.nan):
        return torch.full((len(ROWS), 1, self.heads, self.dim_v), fill, dtype=self.dtype)


def forced(t, length):
    """Rows that are to flush on a step: none, some, all, with any value but 0."""
    if t % 5 == 2 and length > 1:
        return torch.tensor([1, 1, 0, -3], dtype=torch.int32)
    return torch.zeros(4, dtype=torch.int32) if t % 2 else None


def decode(sequences, length, round_beta=False, flushes=forced):
    """Run every step; check outputs and every flushed state; return how many flushes of either kind there were."""
    state, rings = sequences.state.clone(), sequences.rings(length)
    cursor = torch.zeros(len(ROWS), dtype=torch.int32)
    right = {row: sequences.expected(row, round_beta) for row, slot in enumerate(ROWS) if slot >= 0}
    natural = asked = 0
    for t in range(STEPS):
        flush = flushes(t, length)
        result = naive_replayssm_decode(
            **sequences.call(t, initial_state=state, out=sequences.out(), write_pos=cursor, force_flush=flush, **rings),
            round_beta=round_beta,
        )
        assert not result.out[1].any()
        for row, (outs, states) in right.items():
            torch.testing.assert_close(result.out[row, 0], outs[t], rtol=1e-9, atol=1e-9)
            full, wanted = int(cursor[row]) == length - 1, flush is not None and bool(flush[row])
            natural, asked = natural + full, asked + (wanted and not full)
            if full or wanted:
                torch.testing.assert_close(result.initial_state[ROWS[row]], states[t], rtol=1e-9, atol=1e-9)
                assert same(result.d_cache[ROWS[row]], rings["d_cache"][ROWS[row]])
            else:
                assert same(result.initial_state[ROWS[row]], state[ROWS[row]])
            cursor[row] = 0 if full or wanted else cursor[row] + 1
        for slot in set(range(SLOTS)) - set(ROWS):
            assert same(result.initial_state[slot], sequences.state[slot])
            assert all(bool(ring[slot].isnan().all()) for ring in (result.d_cache, result.k_cache, result.g_cache))
        state = result.initial_state
        rings = {name: getattr(result, name) for name in rings}
    return natural, asked


def same(one, other):
    """Whether two tensors hold the same bits."""
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    kind = kinds[one.element_size()]
    return torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


@pytest.mark.parametrize("length", [1, 2, 4, 16])
@pytest.mark.parametrize("lower_bound", [None, -5.0], ids=["softplus", "bounded"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_equals_the_recurrence(group, lower_bound, length):
    natural, asked = decode(Sequences(1, group, lower_bound=lower_bound), length)
    assert natural > 0
    assert (asked > 0) == (length > 1)
