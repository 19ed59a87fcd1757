"""The naive KDA decode against the plain recurrence, which runs over the whole sequence and knows no ring."""

import math

import pytest
import torch

from tensorpact_kernels.replayssm.naive import (
    naive_packed_decode,
    naive_packed_decode_,
    naive_replayssm_decode,
    naive_replayssm_decode_,
)
from tensorpact_kernels.replayssm.recurrence import naive_kda_recurrence

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
        self.a[3, 0, 0, 0], self.a[4, 2, 1, -1], self.a[5, 3, 0, 0] = 25.0, -40.0, 20.0
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


@pytest.mark.parametrize("length", [2, 16])
@pytest.mark.parametrize("shape", [(9, 5), (4, 4), (1, 3)], ids=["K>V", "K=V", "K=1"])
def test_head_dims_and_raw_queries(shape, length):
    dim_k, dim_v = shape
    decode(Sequences(2, 2, dim_k, dim_v, normalise=False), length)


def test_the_state_is_the_same_however_often_it_is_written():
    never = decode(Sequences(3), 16, flushes=lambda t, length: None)
    always = decode(Sequences(3), 16, flushes=lambda t, length: torch.ones(4, dtype=torch.int32))
    assert never == (3 * (STEPS // 16), 0)
    assert always == (0, 3 * STEPS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("round_beta", [False, True], ids=["fp32-beta", "rounded-beta"])
def test_one_step_of_narrow_inputs_is_computed_in_float32(dtype, round_beta):
    sequences = Sequences(4, dtype=dtype)
    rings = sequences.rings(1)
    write_pos = torch.zeros(len(ROWS), dtype=torch.int32)
    call = sequences.call(0, initial_state=sequences.state, out=sequences.out(), write_pos=write_pos, **rings)
    result = naive_replayssm_decode(**call, round_beta=round_beta)
    assert (result.out.dtype, result.initial_state.dtype, result.g_cache.dtype) == (dtype, dtype, torch.float32)
    outs, states = sequences.expected(0, round_beta)
    limit = {"rtol": torch.finfo(dtype).eps, "atol": 4 * torch.finfo(torch.float32).eps}
    torch.testing.assert_close(result.out[0, 0].double(), outs[0], **limit)
    torch.testing.assert_close(result.initial_state[ROWS[0]].double(), states[0], **limit)


def drift(round_beta, steps):
    """How far the state ends from that of packed decode, which keeps the write strength in float32."""
    half = torch.bfloat16
    sizes = {"A_log": torch.zeros(1), "dt_bias": torch.zeros(1, 16), "scale": 0.25, "use_qk_l2norm_in_kernel": True}
    replayed = torch.zeros(1, 1, 16, 16)
    packed = replayed.clone()
    rings = {
        "d_cache": torch.zeros(1, 1, 1, 16),
        "k_cache": torch.zeros(1, 1, 1, 16),
        "g_cache": torch.zeros(1, 1, 1, 16),
    }
    gen = torch.Generator().manual_seed(5)
    for _ in range(steps):
        call = {
            "mixed_qkv": torch.randn(1, 48, generator=gen).to(half),
            "b": torch.full((1, 1), 0.5, dtype=half),
            "out": torch.empty(1, 1, 1, 16, dtype=torch.float32),
            "ssm_state_indices": torch.zeros(1, dtype=torch.int32),
            **sizes,
        }
        a = torch.full((1, 1, 16), -20.0, dtype=half)
        naive_replayssm_decode_(
            a=a,
            initial_state=replayed,
            write_pos=torch.zeros(1, dtype=torch.int32),
            **rings,
            **call,
            round_beta=round_beta,
        )
        call["dt_bias"] = call["dt_bias"].flatten()
        naive_packed_decode_(a=a.flatten(1), initial_state=packed, **call)
    assert torch.sigmoid(torch.tensor(0.5)).to(half) == 0.62109375
    return (replayed - packed).abs().max().item()


@pytest.mark.parametrize("steps", [1, 32, 256])
def test_sglang_38975_a_rounded_write_strength_drifts(steps):
    assert drift(False, steps) == 0
    assert drift(True, steps) > 1e-4


@pytest.mark.parametrize("lower_bound", [None, -5.0], ids=["softplus", "bounded"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_ring_of_one_token_is_packed_decode(group, lower_bound):
    sequences = Sequences(6, group, lower_bound=lower_bound)
    replayed, packed = sequences.state.clone(), sequences.state.clone()
    rings = sequences.rings(1)
    for t in range(STEPS):
        out, packed_out = sequences.out(), sequences.out()
        cursor = torch.zeros(len(ROWS), dtype=torch.int32)
        naive_replayssm_decode_(**sequences.call(t, initial_state=replayed, out=out, write_pos=cursor, **rings))
        result = naive_packed_decode(
            **sequences.call(
                t,
                a=sequences.a[t].flatten(1),
                dt_bias=sequences.dt_bias.flatten(),
                initial_state=packed,
                out=packed_out,
            )
        )
        packed = result.initial_state
        assert same(out, result.out)
        assert same(replayed, packed)
        assert bool(packed_out.isnan().all())
    assert all(bool(ring.isnan().all()) for ring in rings.values())


@pytest.mark.parametrize("wrong", ["padding", "slot", "cursor-below", "cursor-above"])
def test_rows_that_are_not_served_touch_nothing(wrong):
    sequences = Sequences(7, dtype=torch.float32)
    gen = torch.Generator().manual_seed(8)
    pools = {name: torch.randn(x.shape, generator=gen) for name, x in sequences.rings(4).items()}
    pools["initial_state"] = sequences.state
    before = {name: x.clone() for name, x in pools.items()}
    slots = torch.full((4,), {"padding": -9, "slot": SLOTS}.get(wrong, 2), dtype=torch.int32)
    cursor = torch.full((4,), {"cursor-below": -1, "cursor-above": 4}.get(wrong, 3), dtype=torch.int32)
    slots[3], cursor[3] = 5, 1
    given = slots.clone(), cursor.clone()
    out = sequences.out()
    naive_replayssm_decode_(**sequences.call(0, out=out, ssm_state_indices=slots, write_pos=cursor, **pools))
    assert not out[:3].any()
    assert out[3].isfinite().all()
    assert out[3].any()
    assert torch.equal(slots, given[0])
    assert torch.equal(cursor, given[1])
    assert same(pools["initial_state"], before["initial_state"])
    for name in ("d_cache", "k_cache", "g_cache"):
        # Only the row at the cursor of the one row that is served.
        assert not same(pools[name][5, :, 1], before[name][5, :, 1])
        pools[name][5, :, 1] = before[name][5, :, 1]
        assert same(pools[name], before[name])


def test_packed_rows_that_are_not_served_touch_nothing():
    sequences = Sequences(9, dtype=torch.float32)
    state, before, out = sequences.state, sequences.state.clone(), sequences.out()
    flat = {"a": sequences.a[0].flatten(1), "dt_bias": sequences.dt_bias.flatten()}
    slots = torch.tensor([-1, SLOTS, 2**31 - 1, 2])
    naive_packed_decode_(**sequences.call(0, **flat, initial_state=state, out=out, ssm_state_indices=slots))
    assert not out[:3].any()
    assert out[3].any()
    kept = [0, 1, 3, 4, 5]
    assert same(state[kept], before[kept])
    assert not same(state[2], before[2])


def test_memory_around_strided_pools_is_not_touched():
    sequences = Sequences(10, dtype=torch.float32)
    plain = {**sequences.rings(4, 0.25), "initial_state": sequences.state}
    cursor = torch.tensor([0, 2, 3, 1], dtype=torch.int32)
    wanted, guards = {name: x.clone() for name, x in plain.items()}, {}
    strided = {}
    for name, x in plain.items():
        # A larger slot stride, an offset, and a row of other memory in front of every head.
        guards[name] = torch.full((SLOTS, x.shape[1] + 2, *x.shape[2:]), 7.5)
        strided[name] = guards[name][:, 1:-1]
        strided[name].copy_(x)
    out, strided_out = sequences.out(), sequences.out()
    naive_replayssm_decode_(**sequences.call(0, out=out, write_pos=cursor, **wanted))
    naive_replayssm_decode_(**sequences.call(0, out=strided_out, write_pos=cursor, **strided))
    assert same(out, strided_out)
    for name, guard in guards.items():
        assert same(strided[name], wanted[name])
        assert bool((guard[:, [0, -1]] == 7.5).all())


@pytest.mark.parametrize("function", [naive_replayssm_decode, naive_packed_decode])
def test_no_rows(function):
    sequences = Sequences(11)
    empty = {name: x[:0] if name in ("mixed_qkv", "a", "b") else x for name, x in sequences.call(0).items()}
    empty |= {"out": sequences.out()[:0], "initial_state": sequences.state, "ssm_state_indices": torch.zeros(0).long()}
    if function is naive_replayssm_decode:
        empty |= {"write_pos": torch.zeros(0, dtype=torch.int32), **sequences.rings(4)}
    result = function(**empty)
    assert result.out.shape == (0, 1, sequences.heads, sequences.dim_v)
    assert same(result.initial_state, sequences.state)


def test_the_functional_form_leaves_its_arguments_alone():
    sequences = Sequences(12)
    given = sequences.call(
        0,
        initial_state=sequences.state,
        out=sequences.out(),
        write_pos=torch.tensor([3, 0, 0, 1], dtype=torch.int32),
        **sequences.rings(4, 0.5),
    )
    before = {name: x.clone() for name, x in given.items() if isinstance(x, torch.Tensor)}
    result = naive_replayssm_decode(**given)
    assert all(torch.equal(given[name].nan_to_num(), x.nan_to_num()) for name, x in before.items())
    assert not same(result.initial_state, sequences.state)


def test_extreme_gates():
    """A channel that forgets everything, and one that keeps everything, without a NaN from infinities."""
    sequences = Sequences(13, dtype=torch.float32)
    sequences.A_log[:] = 60.0
    sequences.a[:, :, :, 1:] = -1e4
    state, rings = sequences.state.clone(), sequences.rings(4)
    for t in range(4):
        cursor = torch.full((4,), t, dtype=torch.int32)
        out = sequences.out()
        naive_replayssm_decode_(**sequences.call(t, initial_state=state, out=out, write_pos=cursor, **rings))
        assert out.isfinite().all()
    assert state.isfinite().all()
    assert rings["g_cache"][ROWS[0], :, :3, 0].max() < -1e20
    assert rings["g_cache"][ROWS[0], :, :3, 1:].min() == 0
