"""Runs the packed attention kernels in Triton's interpreter and prints one JSON line per case.

Started by test_packed_attention_interpreter.py in a process of its own: Triton reads TRITON_INTERPRET once, at import.
"""

import json
import math
import traceback

import torch

import tensorpact
from tensorpact_kernels import fused_infer_attention_varlen, fused_infer_attention_varlen_causal
from tensorpact_kernels.packed_attention.launch import TileConfig, packed_attention_triton, plan_tiles
from tensorpact_kernels.packed_attention.naive import naive_packed_attention

CASES = {}
SMALL = TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=2)
# The interpreter truncates where the GPU rounds to the nearest bfloat16.
EPSILON = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}


def case(function, /, **arguments):
    label = ",".join(f"{key}={getattr(value, '__name__', value)}" for key, value in arguments.items())
    CASES[f"{function.__name__}[{label}]".replace("torch.", "")] = (function, arguments)


def poison_allocations():
    """Fill what torch.empty returns with NaN, so that an unwritten element shows."""
    allocate = torch.empty

    def poisoned(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    torch.empty = poisoned


def bounds_of(lengths):
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends


def draw(lengths_q, lengths_k, heads=4, key_heads=2, dim=24, value_dim=40, dtype=torch.float16, seed=0):
    gen = torch.Generator().manual_seed(seed)
    shapes = (sum(lengths_q), heads, dim), (sum(lengths_k), key_heads, dim), (sum(lengths_k), key_heads, value_dim)
    return [torch.randn(shape, generator=gen).to(dtype) for shape in shapes]


def check(q, k, v, bounds_q, bounds_k, *, causal, config=SMALL, index=torch.int32, scale=0.3):
    cu_q, cu_k = torch.tensor(bounds_q, dtype=index), torch.tensor(bounds_k, dtype=index)
    before = [tensor.clone() for tensor in (q, k, v, cu_q, cu_k)]
    out, lse = packed_attention_triton(q, k, v, cu_q, cu_k, scale, causal=causal, return_lse=True, config=config)
    wanted, wanted_lse = naive_packed_attention(
        q.double(), k.double(), v.double(), bounds_q, bounds_k, scale, causal=causal
    )
    assert out.dtype == q.dtype, out.dtype
    assert out.isfinite().all(), "a row was not written, or is not finite"
    error = (out.double() - wanted).norm() / wanted.norm().clamp_min(1e-9)
    assert error < EPSILON[q.dtype], f"relative error {error:.2e}"
    # In float32 the interpreter's exp2 and log limit this.
    limit = 1e-4 if q.dtype == torch.float32 else 3e-2
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-3, atol=limit)
    for tensor, copy in zip((q, k, v, cu_q, cu_k), before, strict=True):
        assert torch.equal(tensor, copy), "an argument was written to"
    return out


def lengths(queries, keys=None, causal=False, **shape):
    keys = keys or queries
    check(*draw(queries, keys, **shape), bounds_of(queries), bounds_of(keys), causal=causal)


def without_lse(causal):
    queries = [5, 0, 18]
    q, k, v = draw(queries, queries)
    cu = torch.tensor(bounds_of(queries))
    wanted = check(q, k, v, cu.tolist(), cu.tolist(), causal=causal, index=cu.dtype)
    out, none = packed_attention_triton(q, k, v, cu, cu, 0.3, causal=causal, config=SMALL)
    assert none is None
    assert torch.equal(out, wanted)


def chosen_tile(dtype, causal):
    queries = [40, 0, 90]
    check(*draw(queries, queries, dtype=dtype), bounds_of(queries), bounds_of(queries), causal=causal, config=None)


def strided(causal):
    queries = [9, 17]
    gen = torch.Generator().manual_seed(1)
    fused = torch.randn(26, 12, 16, generator=gen).half()
    q, k, v = fused.split(4, 1)
    check(q, k, v, bounds_of(queries), bounds_of(queries), causal=causal, index=torch.int64)
    spread = torch.randn(26, 4, 32, generator=gen).half()[..., ::2]
    turned = torch.randn(4, 26, 16, generator=gen).half().transpose(0, 1)
    shared = torch.randn(26, 1, 16, generator=gen).half().expand(26, 4, 16)
    check(spread, turned, shared, bounds_of(queries), bounds_of(queries), causal=causal)


def neighbours(causal):
    queries = [7, 5, 20, 3, 18]
    bounds = bounds_of(queries)
    q, k, v = draw(queries, queries, dim=16, value_dim=16)
    cu = torch.tensor(bounds)
    clean, _ = packed_attention_triton(q, k, v, cu, cu, 0.3, causal=causal, config=SMALL)
    for number in (1, 3):
        for tensor in (q, k, v):
            tensor[bounds[number] : bounds[number + 1]] = math.nan
    out, _ = packed_attention_triton(q, k, v, cu, cu, 0.3, causal=causal, config=SMALL)
    for number in (0, 2, 4):
        rows = slice(bounds[number], bounds[number + 1])
        assert torch.equal(out[rows], clean[rows]), "a NaN of another sequence came through"
    assert out[bounds[1] : bounds[2]].isnan().all()


def outside(causal):
    q, k, v = draw([60], [60], dim=16, value_dim=16)
    bounds_q, bounds_k = [4, 20, 50], [2, 30, 44]
    check(q, k, v, bounds_q, bounds_k, causal=causal)
    cu_q, cu_k = torch.tensor(bounds_q), torch.tensor(bounds_k)
    out, lse = packed_attention_triton(q, k, v, cu_q, cu_k, 0.3, causal=causal, return_lse=True, config=SMALL)
    assert not out[:4].any()
    assert not out[50:].any()
    assert (lse[:, :4] == -math.inf).all()


def lying(causal):
    q, k, v = draw([60], [60], heads=1, key_heads=1, dim=16, value_dim=16)
    for bounds in ([0, 50, 20, 60], [-5, 70, 7, 2**40], [0, 60, 0, 60, 0, 60], [60, 0], [2**40, -(2**40)]):
        cu = torch.tensor(bounds)
        packed_attention_triton(q, k, v, cu, cu, 0.3, causal=causal, config=SMALL)


def plan(queries, keys, causal):
    q, k = torch.zeros(sum(queries), 1, 16), torch.zeros(sum(keys), 1, 16)
    cu_q, cu_k = torch.tensor(bounds_of(queries)), torch.tensor(bounds_of(keys))
    made = plan_tiles(q, k, cu_q, cu_k, 16, causal=causal)
    count = int(made.count[0])
    tiles = made.tiles[:count, :5].tolist()
    assert count == sum(-(-n // 16) for n in queries), count
    assert count <= made.capacity
    rows = sorted(row for first, number, *_ in tiles for row in range(first, first + number))
    assert rows == list(range(sum(queries))), "a row is in no tile, or in two"
    seen = [max(0, min(length, diagonal + number)) if causal else length for _, number, _, length, diagonal in tiles]
    assert seen == sorted(seen, reverse=True), f"not the longest first: {seen}"
    for first, number, first_key, length, diagonal in tiles:
        at = max(i for i in range(len(queries)) if bounds_of(queries)[i] <= first and queries[i])
        assert (first_key, length) == (bounds_of(keys)[at], keys[at])
        assert first + number <= bounds_of(queries)[at + 1]
        assert diagonal == first - bounds_of(queries)[at] + length - queries[at]


def entry(causal):
    queries = [5, 0, 37]
    q, k, v = draw(queries, queries)
    function = fused_infer_attention_varlen_causal if causal else fused_infer_attention_varlen
    cu = torch.tensor(bounds_of(queries))
    with tensorpact.use_backend("triton"):
        out, lse = function(q, k, v, cu, cu.int(), cu_seqlens_q_host=cu.tolist(), return_softmax_lse=True)
        nothing, no_lse = function(q[:0], k[:0], v[:0], cu * 0, cu * 0, return_softmax_lse=True)
    wanted, wanted_lse = function(q, k, v, cu, cu, return_softmax_lse=True)
    torch.testing.assert_close(out, wanted, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(lse, wanted_lse, atol=3e-2, rtol=1e-3)
    assert nothing.shape == (0, 4, 40)
    assert (no_lse.shape, no_lse.dtype) == ((4, 0), torch.float32)


for causal in (False, True):
    case(lengths, queries=[1, 15, 16, 17], causal=causal)
    case(lengths, queries=[0, 0, 33, 0, 18, 0], causal=causal)
    case(lengths, queries=[5, 0, 20, 33], keys=[40, 0, 16, 7], causal=causal)
    case(lengths, queries=[3] * 9, causal=causal, heads=2, dim=16)
    case(lengths, queries=[20], causal=causal, heads=7, key_heads=1, dim=96, value_dim=120)
    case(lengths, queries=[20, 11], causal=causal, dtype=torch.bfloat16, heads=8, key_heads=8)
    case(lengths, queries=[20, 11], causal=causal, dtype=torch.float32)
    case(lengths, queries=[0, 0], causal=causal)
    case(chosen_tile, dtype=torch.float16, causal=causal)
    case(chosen_tile, dtype=torch.float32, causal=causal)
    for function in (without_lse, strided, neighbours, outside, lying, entry):
        case(function, causal=causal)
    case(plan, queries=[100, 0, 16, 1, 64, 100], keys=[100, 0, 16, 1, 64, 100], causal=causal)
    case(plan, queries=[50, 70, 3], keys=[10, 200, 40], causal=causal)
    case(plan, queries=[2] * 21, keys=[5] * 21, causal=causal)
    case(plan, queries=[1500], keys=[1500], causal=causal)


def main():
    poison_allocations()
    for name, (function, arguments) in CASES.items():
        error = None
        try:
            function(**arguments)
        except Exception:
            error = traceback.format_exc(limit=-3)
        print(json.dumps({"case": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
