"""The reference of packed attention against torch's own attention, one sequence at a time."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tensorpact_kernels import fused_infer_attention_varlen, fused_infer_attention_varlen_causal
from tensorpact_kernels.packed_attention import naive
from tensorpact_kernels.packed_attention.naive import (
    naive_fused_infer_attention_varlen,
    naive_fused_infer_attention_varlen_causal,
    naive_packed_attention,
)

GRID = [
    ([7], [7]),
    ([1, 15, 16, 17], [1, 15, 16, 17]),
    ([0, 5, 0, 9], [0, 11, 0, 9]),
    ([4, 12, 3], [9, 5, 3]),
]


def bounds_of(lengths):
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends


def one_by_one(q, k, v, bounds_q, bounds_k, scale, causal):
    """Torch's attention on each sequence, with the mask and the log denominator written out."""
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
    lse = torch.full((q.shape[1], q.shape[0]), -math.inf, dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for i in range(len(bounds_q) - 1):
        rows, keys = slice(*bounds_q[i : i + 2]), slice(*bounds_k[i : i + 2])
        lq, lk = rows.stop - rows.start, keys.stop - keys.start
        for head in range(q.shape[1]):
            query, key, value = q[rows, head], k[keys, head // group], v[keys, head // group]
            mask = torch.ones(lq, lk, dtype=torch.bool).tril(lk - lq) if causal else torch.ones(lq, lk).bool()
            seen = mask.any(1)
            if not seen.any():
                continue
            got = scaled_dot_product_attention(
                query[None, seen], key[None], value[None], attn_mask=mask[seen], scale=scale
            )
            out[rows, head] = out[rows, head].masked_scatter(seen[:, None], got[0])
            for row in seen.nonzero().flatten().tolist():
                scores = (key @ query[row]) * scale
                lse[head, rows.start + row] = scores[mask[row]].exp().sum().log()
    return out, lse


def draw(lengths_q, lengths_k, heads=6, key_heads=2, dim=10, value_dim=7, seed=0):
    gen = torch.Generator().manual_seed(seed)
    shapes = (sum(lengths_q), heads, dim), (sum(lengths_k), key_heads, dim), (sum(lengths_k), key_heads, value_dim)
    return [torch.randn(shape, generator=gen, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), GRID)
@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (6, 2), (7, 1), (4, 4)])
def test_against_torch(queries, keys, heads, key_heads, causal):
    q, k, v = draw(queries, keys, heads, key_heads)
    bounds = bounds_of(queries), bounds_of(keys)
    out, lse = naive_packed_attention(q, k, v, *bounds, 0.37, causal=causal)
    wanted, wanted_lse = one_by_one(q, k, v, *bounds, 0.37, causal)
    assert out.dtype == lse.dtype == torch.float64
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse)


@pytest.mark.parametrize("causal", [False, True])
def test_pieces_of_queries_make_no_difference(causal, monkeypatch):
    q, k, v = draw([23, 9], [30, 9])
    bounds = bounds_of([23, 9]), bounds_of([30, 9])
    whole = naive_packed_attention(q, k, v, *bounds, 0.3, causal=causal)
    monkeypatch.setattr(naive, "_SCORES_LIMIT", 500)
    pieces = naive_packed_attention(q, k, v, *bounds, 0.3, causal=causal)
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one, other)


def test_the_entry_points_call_it_with_the_usual_scale():
    q, k, v = (tensor.float() for tensor in draw([5, 8], [5, 8]))
    cu = torch.tensor([0, 5, 13])
    for entry, reference, causal in (
        (fused_infer_attention_varlen, naive_fused_infer_attention_varlen, False),
        (fused_infer_attention_varlen_causal, naive_fused_infer_attention_varlen_causal, True),
    ):
        wanted = one_by_one(q.double(), k.double(), v.double(), [0, 5, 13], [0, 5, 13], 10**-0.5, causal)
        for function in (entry, reference):
            out, lse = function(q, k, v, cu, cu, return_softmax_lse=True)
            assert (out.dtype, lse.dtype) == (torch.float32, torch.float32)
            torch.testing.assert_close(out.double(), wanted[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(lse.double(), wanted[1], atol=1e-5, rtol=1e-5)
            assert torch.equal(function(q, k, v, cu, cu), out)
            scaled = function(q, k, v, cu, cu, softmax_scale=2)
            doubled = one_by_one(q.double(), k.double(), v.double(), [0, 5, 13], [0, 5, 13], 2, causal)[0]
            torch.testing.assert_close(scaled.double(), doubled, atol=1e-4, rtol=1e-4)


def test_the_host_copy_is_what_a_cpu_goes_by():
    q, k, v = draw([5, 8], [5, 8])
    cu, other = torch.tensor([0, 5, 13]), (0, 6, 13)
    by_copy = naive_fused_infer_attention_varlen(q, k, v, cu, cu, cu_seqlens_q_host=other, cu_seqlens_k_host=other)
    assert torch.equal(by_copy, naive_fused_infer_attention_varlen(q, k, v, torch.tensor(other), torch.tensor(other)))


@pytest.mark.parametrize("entry", [fused_infer_attention_varlen, fused_infer_attention_varlen_causal])
def test_a_batch_of_empty_sequences_has_the_width_of_the_values(entry):
    q, k, v = torch.zeros(0, 4, 16), torch.zeros(0, 2, 16), torch.zeros(0, 2, 24)
    cu = torch.zeros(4, dtype=torch.int32)
    out, lse = entry(q, k, v, cu, cu, return_softmax_lse=True)
    assert (out.shape, lse.shape, lse.dtype) == ((0, 4, 24), (4, 0), torch.float32)
