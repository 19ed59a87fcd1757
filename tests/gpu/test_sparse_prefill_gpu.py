"""The sparse attention kernels on a GPU, against the float64 reference.

Needs torch, triton, pytest and the operator's own modules. A kernel may be at most twice as far from float64 as a plain
half-precision torch run of the same tokens is.
"""

import math

import pytest
import torch

pytest.importorskip("triton")

from tensorpact_kernels.sparse_prefill import launch_hopper
from tensorpact_kernels.sparse_prefill.launch import (
    TileConfig,
    sparse_decode_triton,
    sparse_prefill_triton,
)
from tensorpact_kernels.sparse_prefill.naive import naive_sparse_decode, naive_sparse_prefill

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = "cuda"
WINDOW = 128
GUARD = 4096


@pytest.fixture(params=["portable", "hopper"])
def path(request):
    if request.param == "hopper" and not launch_hopper.applies(torch.empty(1, 1, 512, device=CUDA).bfloat16()):
        pytest.skip("needs a Hopper device and a Triton with the Gluon that its kernels use")
    return request.param


def model_indices(tokens, requests, topk, pool_rows, gen, *, dtype=torch.int32, spare=37):
    """Return prefix and extend lists as the model makes them: a sliding-window ring, top-k rows, and new rows."""
    ring, swa_pages = WINDOW + 1, requests * (WINDOW + 1)
    per_request = tokens // requests
    prefix, extend, prefix_counts, extend_counts = [], [], [], []
    for token in range(tokens):
        request, offset = min(token // per_request, requests - 1), token % per_request
        start = 1000 + 3 * request
        position = start + offset
        new = min(offset + 1, WINDOW)
        window_low = max(position - WINDOW + 1, 0)
        old = min(max(start - window_low, 0), WINDOW)
        slots = request * ring + torch.arange(start - old, start) % ring
        compressed = swa_pages + torch.randperm(pool_rows - swa_pages, generator=gen)[:topk]
        prefix.append(torch.cat([slots, compressed]))
        extend.append(torch.arange(token - new + 1, token + 1).clamp_min(0))
        prefix_counts.append(old + len(compressed))
        extend_counts.append(new)
    lists = []
    for entries, counts in ((prefix, prefix_counts), (extend, extend_counts)):
        garbage = torch.full((spare,), 2**31 - 1)
        lists.append(torch.cat([*entries, garbage]).to(dtype).cuda())
        lists.append(torch.tensor([0, *counts]).cumsum(0).to(dtype).cuda())
    return lists


def random_lists(counts, rows, *, dtype=torch.int32, sentinel=0.1, spare=29):
    indptr = torch.tensor([0, *counts]).cumsum(0)
    used = int(indptr[-1])
    indices = torch.randint(0, max(rows, 1), (used,), device=CUDA)
    indices[torch.rand(used, device=CUDA) < sentinel] = -1
    garbage = torch.full((spare,), 2**31 - 1, device=CUDA)
    return torch.cat([indices, garbage]).to(dtype), indptr.to(CUDA, dtype)


def tensors(tokens, heads, dim, rows, new, dtype=torch.bfloat16):
    q = torch.randn(tokens, heads, dim, device=CUDA).to(dtype)
    pool = torch.randn(rows, dim, device=CUDA).to(dtype)
    kv = torch.randn(new, dim, device=CUDA).to(dtype)
    return q, pool, kv, 0.4 * torch.randn(heads, device=CUDA) + 0.5


def prefill_case(tokens=97, heads=128, dim=512, rows=2311, new=131, dtype=torch.bfloat16, index=torch.int32):
    q, pool, kv, sink = tensors(tokens, heads, dim, rows, new, dtype)
    counts = [0 if t % 11 == 3 else 64 + 7 * t % 300 for t in range(tokens)]
    extend = [0 if t % 7 == 3 else 1 + 5 * t % 128 for t in range(tokens)]
    return [q, pool, *random_lists(counts, rows, dtype=index), kv, *random_lists(extend, new, dtype=index), sink]


def lists_of(arguments):
    """Return the positions of (rows, indices, indptr) in a prefill or a decode call."""
    return ((1, 2, 3), (4, 5, 6)) if len(arguments) == 8 else ((1, 2, 3),)


def select(arguments, tokens):
    """Return the same call for a few of its tokens, with index lists that hold nothing else."""
    picked = list(arguments)
    picked[0] = arguments[0][tokens]
    for _, indices, indptr in lists_of(arguments):
        bounds = arguments[indptr].tolist()
        pieces = [arguments[indices][bounds[t] : bounds[t + 1]] for t in tokens.tolist()]
        picked[indices] = torch.cat(pieces)
        picked[indptr] = torch.tensor([0, *(len(piece) for piece in pieces)], device=CUDA).cumsum(0)
    return picked


def plain_half(naive, arguments, scale):
    """Run the reference with scores, probabilities and products rounded to the half type, as plain torch code does."""
    out, lse = naive(*arguments, scale, return_lse=True)
    for token in range(len(out)):
        gathered = []
        for rows, indices, indptr in lists_of(arguments):
            listed = arguments[indices][arguments[indptr][token] : arguments[indptr][token + 1]].long()
            gathered.append(arguments[rows][listed[(listed >= 0) & (listed < len(arguments[rows]))]])
        keys = torch.cat(gathered)
        scores = (arguments[0][token] @ keys.T).float() * scale
        weights = torch.exp(scores - lse[token][:, None]).to(out.dtype)
        out[token] = weights @ keys
    return out


def assert_as_close_as_plain_half(actual, naive, arguments, scale, sample=16):
    out, lse = actual
    tokens = torch.arange(len(out), device=CUDA)
    if len(tokens) > sample:
        tokens = torch.randperm(len(out), device=CUDA)[:sample]
    picked = select(arguments, tokens)
    upcast = [a.double() if a.is_floating_point() else a for a in picked]
    expected, expected_lse = naive(*upcast, scale, return_lse=True)
    own = (out[tokens].double() - expected).norm() / expected.norm()
    plain = (plain_half(naive, picked, scale).double() - expected).norm() / expected.norm()
    assert own <= 2 * plain + 1e-5, f"own error {own:.2e}, plain half {plain:.2e}"
    torch.testing.assert_close(lse[tokens].double(), expected_lse, rtol=1e-3, atol=2e-3)
    assert out.isfinite().all()


@pytest.fixture(autouse=True)
def seed(request):
    value = torch.seed() % 2**31
    request.node.add_report_section("setup", "seed", str(value))
    torch.manual_seed(value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "dim"), [(128, 512), (64, 128), (16, 512), (48, 256), (3, 40), (20, 576), (1, 8), (130, 64)]
)
def test_prefill(heads, dim, dtype):
    arguments = prefill_case(heads=heads, dim=dim, dtype=dtype)
    scale = dim**-0.5
    actual = sparse_prefill_triton(*arguments, scale, return_lse=True, path="portable")
    assert_as_close_as_plain_half(actual, naive_sparse_prefill, arguments, scale)


@pytest.mark.parametrize(
    ("heads", "dtype", "index"),
    [
        (1, torch.bfloat16, torch.int64),
        (16, torch.bfloat16, torch.int32),
        (16, torch.float16, torch.int64),
        (17, torch.bfloat16, torch.int32),
        (48, torch.float16, torch.int64),
        (128, torch.bfloat16, torch.int64),
        (130, torch.bfloat16, torch.int32),
    ],
)
@pytest.mark.parametrize("dim", [128, 256, 512])
def test_prefill_of_the_head_dims_of_both_kernels(heads, dtype, index, dim, path):
    arguments = prefill_case(heads=heads, dim=dim, dtype=dtype, index=index)
    actual = sparse_prefill_triton(*arguments, dim**-0.5, return_lse=True, path=path)
    assert_as_close_as_plain_half(actual, naive_sparse_prefill, arguments, dim**-0.5)
    assert torch.equal(sparse_prefill_triton(*arguments, dim**-0.5, path=path), actual[0])


@pytest.mark.parametrize(("heads", "dim"), [(16, 512), (64, 512), (16, 128), (64, 128), (33, 256)])
@pytest.mark.parametrize("wide", ["prefix", "extend"])
def test_lists_of_two_index_types(heads, dim, wide, path):
    arguments = prefill_case(heads=heads, dim=dim)
    for position in (2, 3) if wide == "prefix" else (5, 6):
        arguments[position] = arguments[position].long()
    actual = sparse_prefill_triton(*arguments, dim**-0.5, return_lse=True, path=path)
    assert_as_close_as_plain_half(actual, naive_sparse_prefill, arguments, dim**-0.5)


@pytest.mark.parametrize("dim", [128, 512])
def test_lists_without_padding_need_no_mask(dim, path):
    q, pool, kv, sink = tensors(37, 64, dim, 997, 131)
    lists = random_lists([64 * (t % 5) for t in range(37)], 997, sentinel=0.0)
    extend = random_lists([64 * (t % 3) for t in range(37)], 131, sentinel=0.0)
    arguments = [q, pool, *lists, kv, *extend, sink]
    actual = sparse_prefill_triton(*arguments, dim**-0.5, return_lse=True, path=path)
    assert_as_close_as_plain_half(actual, naive_sparse_prefill, arguments, dim**-0.5)


@pytest.mark.parametrize("config", [(16, 16, 4, 2), (16, 32, 4, 3), (32, 32, 4, 3), (64, 32, 8, 3), (64, 64, 8, 2)])
def test_prefill_tiles_agree(config):
    arguments = prefill_case(heads=80)
    actual = sparse_prefill_triton(*arguments, 512**-0.5, return_lse=True, config=TileConfig(*config))
    assert_as_close_as_plain_half(actual, naive_sparse_prefill, arguments, 512**-0.5)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("heads", [16, 128])
def test_prefill_with_the_indices_of_the_model(index, heads, path):
    gen = torch.Generator().manual_seed(5)
    tokens, rows = 1024, 8192
    lists = model_indices(tokens, 3, 512, rows, gen, dtype=index)
    q, pool, kv, sink = tensors(tokens, heads, 512, rows, tokens)
    arguments = [q, pool, *lists[:2], kv, *lists[2:], sink]
    actual = sparse_prefill_triton(*arguments, 512**-0.5, return_lse=True, path=path)
    assert_as_close_as_plain_half(actual, naive_sparse_prefill, arguments, 512**-0.5)


@pytest.mark.parametrize("heads", [16, 64])
@pytest.mark.parametrize("dim", [128, 512])
def test_tokens_without_keys_and_sinks_of_any_size(heads, dim, path):
    arguments = prefill_case(tokens=7, heads=heads, dim=dim)
    arguments[2][:] = -1
    arguments[5][:] = -1
    arguments[7][:4] = torch.tensor([-math.inf, 1e4, -1e4, 0.0], device=CUDA)
    out, lse = sparse_prefill_triton(*arguments, 0.04, return_lse=True, path=path)
    assert not out.any()
    torch.testing.assert_close(lse, arguments[7].expand(7, -1))
    arguments = prefill_case(tokens=33, heads=heads, dim=dim)
    arguments[7][:4] = torch.tensor([-math.inf, 40.0, -1e4, 0.0], device=CUDA)
    actual = sparse_prefill_triton(*arguments, 0.04, return_lse=True, path=path)
    upcast = [a.double() if a.is_floating_point() else a for a in arguments]
    expected, expected_lse = naive_sparse_prefill(*upcast, 0.04, return_lse=True)
    torch.testing.assert_close(actual[0].double(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(actual[1].double(), expected_lse, rtol=1e-3, atol=2e-3)


def guarded_empty_like(blocks):
    """Return an empty_like whose tensors lie, filled with NaN, between two guard zones."""

    def allocate(tensor):
        block = torch.full((2 * GUARD + tensor.numel(),), math.nan, dtype=tensor.dtype, device=tensor.device)
        block[:GUARD] = block[-GUARD:] = 7.0
        blocks.append(block)
        return block[GUARD:-GUARD].view(tensor.shape)

    return allocate


@pytest.mark.parametrize(("heads", "dim"), [(128, 512), (16, 512), (64, 128), (16, 128), (80, 256), (20, 40)])
@pytest.mark.parametrize("splits", [None, 1, 4])
def test_every_element_is_written_and_nothing_around(monkeypatch, heads, dim, splits, path):
    if dim not in launch_hopper.WIDE and path == "hopper":
        pytest.skip("the Hopper kernels have no such head dim")
    blocks = []
    monkeypatch.setattr("tensorpact_kernels.sparse_prefill.launch.torch.empty_like", guarded_empty_like(blocks))
    arguments = prefill_case(heads=heads, dim=dim)
    arguments[1] = torch.cat([arguments[1], torch.full((5, dim), math.nan, device=CUDA).to(arguments[1].dtype)])
    before = [a.clone() for a in arguments]
    if splits is None:
        out = sparse_prefill_triton(*arguments, dim**-0.5, path=path)
    else:
        out = sparse_decode_triton(*arguments[:4], arguments[7], dim**-0.5, kv_splits=splits, path=path)
    assert out.isfinite().all()
    assert (blocks[0][:GUARD] == 7.0).all()
    assert (blocks[0][-GUARD:] == 7.0).all()
    assert all(torch.equal(a.nan_to_num(3.0), b.nan_to_num(3.0)) for a, b in zip(arguments, before, strict=True))


@pytest.mark.parametrize("splits", [None, 1, 2, 7, 32])
@pytest.mark.parametrize(
    ("heads", "tokens", "dim"),
    [(16, 5, 512), (128, 5, 512), (16, 256, 512), (16, 5, 128), (64, 7, 128), (13, 64, 256), (80, 5, 256)],
)
def test_decode(heads, tokens, dim, splits, path):
    q, pool, _, sink = tensors(tokens, heads, dim, 20011, 1)
    counts = [0 if t % 5 == 3 else 128 + 997 * t % 4000 for t in range(tokens)]
    arguments = [q, pool, *random_lists(counts, len(pool)), sink]
    actual = sparse_decode_triton(*arguments, dim**-0.5, return_lse=True, kv_splits=splits, path=path)
    assert_as_close_as_plain_half(actual, naive_sparse_decode, arguments, dim**-0.5)


@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("splits", [1, 4])
def test_decode_of_a_quantised_pool(heads, splits):
    q, pool, _, sink = tensors(9, heads, 512, 3001, 1)
    quantised = pool.to(torch.float8_e4m3fn)
    scales = (torch.rand(3001, 16, device=CUDA) + 0.1)[:, ::2]
    plain = quantised.to(q.dtype) * scales.to(q.dtype).repeat_interleave(64, dim=1)
    lists = random_lists([400, 0, 31, 128, 1, 900, 64, 65, 63], 3001)
    actual = sparse_decode_triton(
        q, quantised, *lists, sink, 512**-0.5, kv_scales=scales, return_lse=True, kv_splits=splits
    )
    assert_as_close_as_plain_half(actual, naive_sparse_decode, [q, plain, *lists, sink], 512**-0.5)


def test_any_strides():
    plain = prefill_case(heads=20, dim=40)
    strided = []
    for value in plain:
        wide = torch.full([2 * size for size in value.shape], -1, device=CUDA).to(value.dtype)
        strided.append(wide[tuple(slice(None, None, 2) for _ in value.shape)])
        strided[-1].copy_(value)
    assert torch.equal(sparse_prefill_triton(*strided, 0.2), sparse_prefill_triton(*plain, 0.2))


def padded_rows(tensor, pad):
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + pad), -1, device=CUDA).to(tensor.dtype)
    wide[..., : tensor.shape[-1]] = tensor
    return wide[..., : tensor.shape[-1]]


@pytest.mark.parametrize(("heads", "dim"), [(16, 512), (128, 512), (16, 128), (64, 256)])
@pytest.mark.parametrize("pad", [0, 16, 8, 1])
def test_strided_rows_and_lists_of_the_head_dims_of_both_kernels(heads, dim, pad):
    plain = prefill_case(heads=heads, dim=dim)
    strided = [value.repeat_interleave(2)[::2] if value.ndim == 1 else padded_rows(value, pad) for value in plain]
    strided[0] = torch.cat([strided[0], strided[0]], dim=1)[:, :heads]
    if pad:
        strided[0] = padded_rows(strided[0], pad)
    out, lse = sparse_prefill_triton(*strided, 0.04, return_lse=True)
    expected, expected_lse = sparse_prefill_triton(*plain, 0.04, return_lse=True, path="portable")
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-3, atol=2e-3)


def test_rows_that_are_not_copied_in_vectors_take_the_portable_kernel():
    plain = torch.zeros(3, 16, 512, device=CUDA, dtype=torch.bfloat16)
    assert not launch_hopper.applies(plain.float())
    assert not launch_hopper.applies(plain[:, :, :192])
    assert not launch_hopper.applies(plain, padded_rows(plain[0], 1))
    assert not launch_hopper.applies(plain, padded_rows(plain[0], 8))
    assert not launch_hopper.applies(plain, plain.flatten()[1 : 1 + 512 * 3].view(3, 512))
    assert not launch_hopper.applies(plain, plain[0].half())


@pytest.mark.parametrize("heads", [16, 64])
def test_offsets_beyond_31_bits(heads, path):
    stride, rows, dim = 1 << 20, 2500, 512
    storage = torch.zeros(stride * (rows - 1) + dim, device=CUDA, dtype=torch.bfloat16)
    pool = storage.as_strided((rows, dim), (stride, 1))
    pool.copy_(torch.randn(rows, dim, device=CUDA))
    compact = pool.clone()
    indices = torch.arange(rows - 300, rows, device=CUDA, dtype=torch.int32)
    indptr = torch.tensor([0, 100, 300], device=CUDA, dtype=torch.int32)
    q, _, kv, sink = tensors(2, heads, dim, 1, 3)
    tail = [kv, indices[:0], torch.zeros_like(indptr), sink]
    near = sparse_prefill_triton(q, compact, indices, indptr, *tail, 0.04, path=path)
    assert torch.equal(sparse_prefill_triton(q, pool, indices, indptr, *tail, 0.04, path=path), near)
    storage = torch.zeros((1 << 31) + heads * dim, device=CUDA, dtype=torch.bfloat16)
    wide_q = storage.as_strided((2, heads, dim), (1 << 31, dim, 1))
    wide_q.copy_(q)
    assert torch.equal(sparse_prefill_triton(wide_q, compact, indices, indptr, *tail, 0.04, path=path), near)


def test_more_tokens_than_a_grid_axis_holds(path):
    tokens = 70_001
    q, pool, kv, sink = tensors(tokens, 2, 512, 101, 7)
    lists = random_lists([3] * tokens, 101)
    extend = torch.empty(0, device=CUDA, dtype=torch.int32), torch.zeros(tokens + 1, device=CUDA, dtype=torch.int32)
    out = sparse_prefill_triton(q, pool, *lists, kv, *extend, sink, 0.04, path=path)
    upcast = naive_sparse_prefill(q.double(), pool.double(), *lists, kv.double(), *extend, sink.double(), 0.04)
    assert (out.double() - upcast).norm() / upcast.norm() < 1e-2


@pytest.mark.parametrize(("heads", "dim"), [(16, 512), (128, 512), (16, 128), (64, 128)])
@pytest.mark.parametrize("splits", [None, 1, 4])
def test_capture_and_replay_without_a_sync(splits, heads, dim, path):
    arguments = prefill_case(tokens=19, heads=heads, dim=dim)
    if splits is not None:
        arguments = [*arguments[:4], arguments[7]]

    def call():
        if splits is None:
            return sparse_prefill_triton(*arguments, dim**-0.5, path=path)
        return sparse_decode_triton(*arguments, dim**-0.5, kv_splits=splits, path=path)

    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    arguments[0].copy_(torch.randn_like(arguments[0]))
    for _ in range(3):
        captured.fill_(math.nan)
        graph.replay()
        assert torch.equal(captured, call())


def test_runs_on_the_current_stream():
    arguments = prefill_case(tokens=19, heads=16)
    expected = sparse_prefill_triton(*arguments, 512**-0.5)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    source = torch.empty_like(arguments[0])
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        source.copy_(arguments[0])
        out = sparse_prefill_triton(source, *arguments[1:], 512**-0.5)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_runs_on_the_device_of_its_tensors():
    arguments = prefill_case(tokens=19, heads=16)
    expected = sparse_prefill_triton(*arguments, 512**-0.5)
    other = [a.to("cuda:1") for a in arguments]
    assert torch.equal(sparse_prefill_triton(*other, 512**-0.5).cpu(), expected.cpu())


@pytest.mark.parametrize("dim", [64, 512])
@pytest.mark.parametrize("dimension", ["tokens", "heads", "rows", "new"])
def test_empty_dimensions(dimension, dim):
    shape = {"tokens": 3, "heads": 16, "dim": dim, "rows": 11, "new": 5} | {dimension: 0}
    q, pool, kv, sink = tensors(**shape)
    lists = random_lists([4] * shape["tokens"], shape["rows"]), random_lists([2] * shape["tokens"], shape["new"])
    out, lse = sparse_prefill_triton(q, pool, *lists[0], kv, *lists[1], sink, 0.1, return_lse=True)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:2])
    expected = naive_sparse_prefill(q, pool, *lists[0], kv, *lists[1], sink, 0.1)
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
