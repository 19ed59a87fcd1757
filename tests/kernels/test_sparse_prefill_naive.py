"""The naive sparse attention against a loop over tokens and heads in Python floats of float64."""

import math

import pytest
import torch

from tensorpact_kernels.sparse_prefill.naive import naive_sparse_decode, naive_sparse_prefill

T, H, D, P, N = 5, 3, 6, 11, 7
SCALE = 0.37


def brute_force(q, sources, sink, scale):
    """Attend one token and one head at a time; ``sources`` are (rows, indices, indptr)."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float64)
    for token in range(q.shape[0]):
        rows = []
        for pool, indices, indptr in sources:
            listed = indices.tolist()[int(indptr[token]) : int(indptr[token + 1])]
            rows += [pool[i].double() for i in listed if 0 <= i < pool.shape[0]]
        for head in range(q.shape[1]):
            logits = [scale * float(torch.dot(q[token, head].double(), row)) for row in rows]
            logits.append(float(sink[head]))
            peak = max(logits)
            if peak == -math.inf:
                continue
            denominator = sum(math.exp(x - peak) for x in logits)
            lse[token, head] = peak + math.log(denominator)
            for logit, row in zip(logits, rows, strict=False):
                out[token, head] += math.exp(logit - peak) / denominator * row
    return out, lse


def inputs(seed=0, index_dtype=torch.int32):
    gen = torch.Generator().manual_seed(seed)
    return {
        "q": torch.randn(T, H, D, generator=gen, dtype=torch.float64),
        "unified_kv": torch.randn(P, D, generator=gen, dtype=torch.float64),
        "kv_indices_prefix": torch.randint(0, P, (19,), generator=gen).to(index_dtype),
        "kv_indptr_prefix": torch.tensor([0, 4, 4, 9, 15, 16], dtype=index_dtype),
        "kv": torch.randn(N, D, generator=gen, dtype=torch.float64),
        "kv_indices_extend": torch.randint(0, N, (13,), generator=gen).to(index_dtype),
        "kv_indptr_extend": torch.tensor([0, 1, 1, 4, 10, 12], dtype=index_dtype),
        "attn_sink": 0.4 * torch.randn(H, generator=gen, dtype=torch.float64) + 0.5,
    }


def check(arguments):
    out, lse = naive_sparse_prefill(**arguments, softmax_scale=SCALE, return_lse=True)
    sources = [
        (arguments["unified_kv"], arguments["kv_indices_prefix"], arguments["kv_indptr_prefix"]),
        (arguments["kv"], arguments["kv_indices_extend"], arguments["kv_indptr_extend"]),
    ]
    expected, expected_lse = brute_force(arguments["q"], sources, arguments["attn_sink"], SCALE)
    torch.testing.assert_close(out.double(), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-12, atol=1e-12)
    assert torch.equal(naive_sparse_prefill(**arguments, softmax_scale=SCALE), out)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_equals_the_loop(index_dtype):
    check(inputs(index_dtype=index_dtype))


@pytest.mark.parametrize("sink", [-math.inf, -1e4, 0.0, 90.0, 1e4])
def test_sinks(sink):
    arguments = inputs(1)
    arguments["attn_sink"][1] = sink
    check(arguments)


def test_sentinels_duplicates_and_rows_beyond_the_pool():
    arguments = inputs(2)
    arguments["kv_indices_prefix"][:16] = torch.tensor([3, -1, 3, 3, -7, 0, 10, P, P + 5, -1, -1, -1, -1, -1, -1, 2])
    arguments["kv_indices_extend"][:12] = torch.tensor([-1, 6, N, 6, -2, -1, -1, -1, -1, -1, 0, 0])
    arguments["attn_sink"][2] = -math.inf
    check(arguments)
    out, lse = naive_sparse_prefill(**arguments, softmax_scale=SCALE, return_lse=True)
    assert not out[3].any()
    assert lse[3, 2] == -math.inf
    torch.testing.assert_close(lse[3, :2], arguments["attn_sink"][:2])


def test_tail_of_an_over_allocated_buffer_is_not_read():
    arguments = inputs(3)
    expected = naive_sparse_prefill(**arguments, softmax_scale=SCALE)
    arguments["kv_indices_prefix"][16:] = 2**31 - 1
    arguments["kv_indices_extend"][12:] = -(2**31)
    assert torch.equal(naive_sparse_prefill(**arguments, softmax_scale=SCALE), expected)


def test_indptr_slice_that_does_not_start_at_zero_and_one_that_leaves_the_buffer():
    arguments = inputs(4)
    arguments["kv_indptr_prefix"] = torch.tensor([2, 4, 4, 9, 15, 16], dtype=torch.int32)
    check(arguments)
    arguments["kv_indptr_prefix"] = torch.tensor([-3, 4, 2, 9, 15, 99], dtype=torch.int32)
    bounded = arguments | {"kv_indptr_prefix": torch.tensor([0, 4, 2, 9, 15, 19], dtype=torch.int32)}
    actual = naive_sparse_prefill(**arguments, softmax_scale=SCALE)
    assert torch.equal(actual, naive_sparse_prefill(**bounded, softmax_scale=SCALE))


def test_strided_views():
    plain = inputs(5)
    strided = {}
    for name, value in plain.items():
        wide = torch.full([2 * size for size in value.shape], -1, dtype=value.dtype)
        strided[name] = wide[tuple(slice(None, None, 2) for _ in value.shape)]
        strided[name].copy_(value)
    expected = naive_sparse_prefill(**plain, softmax_scale=SCALE)
    torch.testing.assert_close(naive_sparse_prefill(**strided, softmax_scale=SCALE), expected)


@pytest.mark.parametrize("empty", ["T", "H", "P", "N", "NP", "NE"])
def test_empty_dimensions(empty):
    arguments = inputs(6)
    if empty == "T":
        arguments["q"] = arguments["q"][:0]
        arguments["kv_indptr_prefix"] = arguments["kv_indptr_prefix"][:1]
        arguments["kv_indptr_extend"] = arguments["kv_indptr_extend"][:1]
    elif empty == "H":
        arguments |= {"q": arguments["q"][:, :0], "attn_sink": arguments["attn_sink"][:0]}
    else:
        name = {"P": "unified_kv", "N": "kv", "NP": "kv_indices_prefix", "NE": "kv_indices_extend"}[empty]
        arguments[name] = arguments[name][:0]
        if empty in ("NP", "NE"):
            arguments[name.replace("indices", "indptr")].zero_()
    check(arguments)


def test_unreferenced_nan_is_harmless_and_a_referenced_one_is_not():
    arguments = inputs(7)
    expected = naive_sparse_prefill(**arguments, softmax_scale=SCALE)
    arguments["unified_kv"] = torch.cat([arguments["unified_kv"], torch.full((1, D), math.nan).double()])
    assert torch.equal(naive_sparse_prefill(**arguments, softmax_scale=SCALE), expected)
    arguments["kv_indices_prefix"][0] = P
    assert naive_sparse_prefill(**arguments, softmax_scale=SCALE)[0].isnan().all()


def test_chunks_of_tokens_agree(monkeypatch):
    arguments = inputs(8)
    whole = naive_sparse_prefill(**arguments, softmax_scale=SCALE)
    monkeypatch.setattr("tensorpact_kernels.sparse_prefill.naive._GATHER_LIMIT", 1)
    torch.testing.assert_close(naive_sparse_prefill(**arguments, softmax_scale=SCALE), whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_computed_in_float32(dtype):
    arguments = inputs(9)
    halves = {k: v.to(dtype) if k in ("q", "unified_kv", "kv") else v for k, v in arguments.items()}
    out, lse = naive_sparse_prefill(**halves, softmax_scale=SCALE, return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    upcast = {k: v.double() if v.is_floating_point() else v for k, v in halves.items()}
    expected, expected_lse = naive_sparse_prefill(**upcast, softmax_scale=SCALE, return_lse=True)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)
    assert (out.double() - expected).norm() / expected.norm() < torch.finfo(dtype).eps


def test_decode_is_a_prefill_without_extend_rows():
    arguments = inputs(10)
    arguments["kv_indptr_extend"] = torch.zeros(T + 1, dtype=torch.int32)
    names = {"q": "q", "unified_kv": "unified_kv", "kv_indices_prefix": "kv_indices", "kv_indptr_prefix": "kv_indptr"}
    decode = {new: arguments[old] for old, new in names.items()} | {"attn_sink": arguments["attn_sink"]}
    expected = naive_sparse_prefill(**arguments, softmax_scale=SCALE, return_lse=True)
    actual = naive_sparse_decode(**decode, softmax_scale=SCALE, return_lse=True, kv_splits=3)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_quantised_pool_rounds_the_scale_and_the_product(dtype):
    gen = torch.Generator().manual_seed(11)
    width = 128
    q = torch.randn(T, H, width, generator=gen).to(dtype)
    pool = torch.randn(P, width, generator=gen).to(torch.float8_e4m3fn)
    scales = torch.rand(P, width // 64, generator=gen) + 0.1
    lists = {"kv_indices": torch.randint(0, P, (19,), generator=gen), "kv_indptr": torch.tensor([0, 4, 4, 9, 15, 16])}
    sink = torch.randn(H, generator=gen)
    plain = torch.empty(P, width, dtype=dtype)
    for row in range(P):
        for column in range(width):
            plain[row, column] = pool[row, column].to(dtype) * scales[row, column // 64].to(dtype)
    actual = naive_sparse_decode(q, pool, **lists, attn_sink=sink, softmax_scale=SCALE, kv_scales=scales)
    assert torch.equal(actual, naive_sparse_decode(q, plain, **lists, attn_sink=sink, softmax_scale=SCALE))
