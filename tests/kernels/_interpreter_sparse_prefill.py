"""Runs the sparse attention kernels in Triton's interpreter and prints one JSON line per case.

Started by test_sparse_prefill_interpreter.py in a process of its own: Triton reads TRITON_INTERPRET once, at import.
"""

import json
import math
import traceback

import torch

from tensorpact_kernels.sparse_prefill.launch import TileConfig, sparse_decode_triton, sparse_prefill_triton
from tensorpact_kernels.sparse_prefill.naive import naive_sparse_decode, naive_sparse_prefill

CASES = {}
SMALL = TileConfig(block_h=16, block_k=16, num_warps=4, num_stages=2)
# The interpreter truncates where the GPU rounds to the nearest bfloat16.
EPSILON = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
LSE_EPSILON = {torch.float16: 1e-3, torch.bfloat16: 3e-2}


def case(function, /, **arguments):
    label = ",".join(f"{key}={getattr(value, '__name__', value)}" for key, value in arguments.items())
    CASES[f"{function.__name__}[{label}]".replace("torch.", "")] = (function, arguments)


def poison_allocations():
    """Fill what torch.empty and torch.empty_like return with NaN, so that an unwritten element shows."""

    def poisoned(allocate):
        def allocated(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

        return allocated

    torch.empty = poisoned(torch.empty)
    torch.empty_like = poisoned(torch.empty_like)


def csr(counts, rows, gen, dtype, *, spare=5, sentinel_every=4):
    """Return an over-allocated index list with sentinels and duplicates, and its indptr."""
    indptr = torch.tensor([0, *counts]).cumsum(0)
    used = int(indptr[-1])
    indices = torch.full((used + spare,), 2**31 - 1)
    indices[:used] = torch.randint(0, max(rows, 1), (used,), generator=gen)
    indices[:used:sentinel_every] = -1
    return indices.to(dtype), indptr.to(dtype)


def prefill_inputs(*, heads=3, dim=16, dtype=torch.float16, index=torch.int32, seed=0, rows=23, new=9, counts=None):
    gen = torch.Generator().manual_seed(seed)
    prefix, extend = counts or ([7, 0, 18, 33, 0], [4, 0, 1, 2, 17])
    prefix_indices, prefix_indptr = csr(prefix, rows, gen, index)
    extend_indices, extend_indptr = csr(extend, new, gen, index, sentinel_every=5)
    return {
        "q": torch.randn(len(prefix), heads, dim, generator=gen).to(dtype),
        "unified_kv": torch.randn(rows, dim, generator=gen).to(dtype),
        "kv_indices_prefix": prefix_indices,
        "kv_indptr_prefix": prefix_indptr,
        "kv": torch.randn(new, dim, generator=gen).to(dtype),
        "kv_indices_extend": extend_indices,
        "kv_indptr_extend": extend_indptr,
        "attn_sink": 0.4 * torch.randn(heads, generator=gen) + 0.5,
    }


def upcast(arguments):
    return {name: value.double() if value.is_floating_point() else value for name, value in arguments.items()}


def compare(actual, expected, dtype):
    (out, lse), (wanted, wanted_lse) = actual, expected
    assert out.dtype == dtype, out.dtype
    assert lse.dtype == torch.float32, lse.dtype
    assert torch.equal(out.isnan(), wanted.isnan()), "NaN where none belongs, or none where one does"
    finite = ~wanted.isnan()
    error = (out.double() - wanted)[finite].norm() / wanted[finite].norm().clamp_min(1e-9)
    assert error < EPSILON[dtype], f"relative error {error:.2e}"
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-3, atol=LSE_EPSILON[dtype], equal_nan=True)


def check_prefill(arguments, config=SMALL, scale=0.3):
    before = {name: value.clone() for name, value in arguments.items()}
    actual = sparse_prefill_triton(**arguments, softmax_scale=scale, return_lse=True, config=config)
    expected = naive_sparse_prefill(**upcast(arguments), softmax_scale=scale, return_lse=True)
    compare(actual, expected, arguments["q"].dtype)
    for name, value in before.items():
        assert torch.equal(value.nan_to_num(7.0), arguments[name].nan_to_num(7.0)), f"{name} was written to"
    bare = sparse_prefill_triton(**arguments, softmax_scale=scale, config=config)
    assert torch.equal(bare.nan_to_num(7.0), actual[0].nan_to_num(7.0))
    return actual


def prefill(**shape):
    check_prefill(prefill_inputs(**shape))


def prefill_default_config(**shape):
    check_prefill(prefill_inputs(**shape), config=None)


def prefill_sink(sink):
    arguments = prefill_inputs(seed=1)
    arguments["attn_sink"][1] = sink
    arguments["kv_indices_prefix"][:7] = -1
    arguments["kv_indices_extend"][:4] = -1
    out, lse = check_prefill(arguments)
    assert not out[0].any(), "a token with sentinels only is not zero"
    assert not out[1].any(), "a token without keys is not zero"
    assert lse[1, 1] == sink or abs(lse[1, 1] - sink) < 1e-4 * abs(sink)


def prefill_rows_outside_are_skipped():
    arguments = prefill_inputs(seed=2, index=torch.int64)
    arguments["kv_indices_prefix"][:3] = torch.tensor([23, 2**32 + 1, -(2**40)])
    arguments["kv_indices_extend"][0] = 9
    check_prefill(arguments)


def prefill_indptr_is_clamped():
    arguments = prefill_inputs(seed=3)
    arguments["kv_indptr_prefix"] = torch.tensor([-4, 7, 3, 25, 58, 4000], dtype=torch.int32)
    arguments["kv_indices_prefix"] = arguments["kv_indices_prefix"][:58]
    check_prefill(arguments)


def prefill_unreferenced_nan():
    arguments = prefill_inputs(seed=4)
    arguments["kv_indices_prefix"][arguments["kv_indices_prefix"] == 0] = -1
    arguments["unified_kv"][0] = math.nan
    out, _ = check_prefill(arguments)
    assert not out.isnan().any()


def prefill_referenced_nan():
    arguments = prefill_inputs(seed=5)
    arguments["kv_indices_prefix"][arguments["kv_indices_prefix"] == 0] = -1
    arguments["kv_indices_prefix"][1] = 0
    arguments["unified_kv"][0, 3] = math.nan
    out, _ = check_prefill(arguments)
    assert out[0].isnan().all()


def prefill_strided():
    arguments = {}
    for name, value in prefill_inputs(seed=6, heads=5, dim=8).items():
        wide = torch.full([2 * size for size in value.shape], -1).to(value.dtype)
        arguments[name] = wide[tuple(slice(None, None, 2) for _ in value.shape)]
        arguments[name].copy_(value)
    check_prefill(arguments)


def prefill_transposed():
    arguments = prefill_inputs(seed=7, heads=5)
    arguments["q"] = arguments["q"].transpose(0, 1).contiguous().transpose(0, 1)
    arguments["unified_kv"] = arguments["unified_kv"].T.contiguous().T
    check_prefill(arguments)


def prefill_empty(dimension):
    arguments = prefill_inputs(seed=8)
    if dimension == "T":
        arguments["q"] = arguments["q"][:0]
        arguments |= {name: arguments[name][:1] for name in arguments if "indptr" in name}
    elif dimension == "H":
        arguments |= {"q": arguments["q"][:, :0], "attn_sink": arguments["attn_sink"][:0]}
    else:
        name = {"P": "unified_kv", "N": "kv", "NP": "kv_indices_prefix", "NE": "kv_indices_extend"}[dimension]
        arguments[name] = arguments[name][:0]
    check_prefill(arguments)


def decode_inputs(*, quantised=False, **shape):
    arguments = prefill_inputs(**shape)
    names = {"q": "q", "unified_kv": "unified_kv", "kv_indices_prefix": "kv_indices", "kv_indptr_prefix": "kv_indptr"}
    decode = {new: arguments[old] for old, new in names.items()} | {"attn_sink": arguments["attn_sink"]}
    if quantised:
        rows, dim = decode["unified_kv"].shape
        decode["unified_kv"] = decode["unified_kv"].to(torch.float8_e4m3fn)
        gen = torch.Generator().manual_seed(9)
        decode["kv_scales"] = (torch.rand(rows, 2 * (dim // 64), generator=gen) + 0.1)[:, ::2]
    return decode


def decode(*, splits, config=SMALL, sink=None, **shape):
    arguments = decode_inputs(**shape)
    if sink is not None:
        arguments["attn_sink"][0] = sink
    actual = sparse_decode_triton(**arguments, softmax_scale=0.3, return_lse=True, kv_splits=splits, config=config)
    reference = dict(arguments)
    if "kv_scales" in reference:
        dtype = arguments["q"].dtype
        scales = reference.pop("kv_scales").to(dtype).repeat_interleave(64, dim=1)
        reference["unified_kv"] = reference["unified_kv"].to(dtype) * scales
    expected = naive_sparse_decode(**upcast(reference), softmax_scale=0.3, return_lse=True)
    compare(actual, expected, arguments["q"].dtype)
    bare = sparse_decode_triton(**arguments, softmax_scale=0.3, kv_splits=splits, config=config)
    assert torch.equal(bare, actual[0])


def decode_empty():
    arguments = decode_inputs(seed=10)
    arguments["q"] = arguments["q"][:0]
    arguments["kv_indptr"] = arguments["kv_indptr"][:1]
    out, lse = sparse_decode_triton(**arguments, softmax_scale=0.3, return_lse=True)
    assert (out.shape, lse.shape) == ((0, 3, 16), (0, 3))


for _dim, _heads in ((8, 1), (16, 3), (40, 16), (64, 20), (8, 16), (16, 20), (40, 3), (64, 1)):
    case(prefill, dim=_dim, heads=_heads)
for _dtype in (torch.float16, torch.bfloat16):
    for _index in (torch.int32, torch.int64):
        case(prefill, dtype=_dtype, index=_index, seed=11)
case(prefill, dim=1)
case(prefill_default_config, dim=40, heads=20, seed=12)
for _sink in (-math.inf, -1e4, 0.0, 60.0, 1e4):
    case(prefill_sink, sink=_sink)
for _function in (
    prefill_rows_outside_are_skipped,
    prefill_indptr_is_clamped,
    prefill_unreferenced_nan,
    prefill_referenced_nan,
    prefill_strided,
    prefill_transposed,
):
    case(_function)
for _dimension in ("T", "H", "P", "N", "NP", "NE"):
    case(prefill_empty, dimension=_dimension)
for _splits in (1, 2, 3, 8, None):
    case(decode, splits=_splits, heads=5, dim=40)
    case(decode, splits=_splits, dim=192, quantised=True)
for _dtype in (torch.float16, torch.bfloat16):
    case(decode, splits=2, heads=20, dtype=_dtype, index=torch.int64)
    case(decode, splits=2, dim=64, dtype=_dtype, quantised=True)
case(decode, splits=None, config=None, heads=20, dim=64)
for _sink in (-math.inf, 60.0):
    for _splits in (1, 4):
        case(decode, splits=_splits, sink=_sink)
case(decode_empty)


def main():
    poison_allocations()
    for name, (function, arguments) in CASES.items():
        try:
            function(**arguments)
            error = None
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"case": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
