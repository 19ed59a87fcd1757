"""The packed attention kernels on a GPU, against the float64 reference."""

import math

import pytest
import torch

pytest.importorskip("triton")

from tensorpact_kernels.packed_attention import launch_hopper
from tensorpact_kernels.packed_attention.launch import packed_attention_triton
from tensorpact_kernels.packed_attention.launch_hopper import HopperConfig
from tensorpact_kernels.packed_attention.naive import naive_packed_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = "cuda"
LENGTHS = {
    "mixed": ([1, 15, 16, 17, 127, 129, 64, 200], None),
    "empty": ([0, 0, 100, 0, 333, 0], None),
    "cross": ([5, 0, 130, 300, 1], [700, 0, 64, 129, 1]),
    "longer_queries": ([300, 190], [200, 65]),
    "one": ([1000], None),
    "many": ([3] * 300, None),
    "tiny": ([1], None),
}


@pytest.fixture(params=["portable", "hopper"])
def path(request):
    if request.param == "hopper" and not launch_hopper.applies(*[torch.empty(1, 1, 64, device=CUDA).bfloat16()] * 3):
        pytest.skip("needs a Hopper device and a Triton with the Gluon that its kernel uses")
    return request.param


def bounds_of(lengths):
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends


def draw(lengths_q, lengths_k, heads, key_heads, dim, value_dim, dtype, seed=0):
    gen = torch.Generator(CUDA).manual_seed(seed)
    shapes = (sum(lengths_q), heads, dim), (sum(lengths_k), key_heads, dim), (sum(lengths_k), key_heads, value_dim)
    return [torch.randn(shape, device=CUDA, generator=gen).to(dtype) for shape in shapes]


def poisoned(monkeypatch):
    """Fill new tensors with NaN, so that an element that is not written shows."""
    allocate = torch.empty

    def empty(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", empty)


def check(path, q, k, v, bounds_q, bounds_k, *, causal, index=torch.int32, scale=None, **options):
    scale = q.shape[2] ** -0.5 if scale is None else scale
    cu_q, cu_k = (torch.tensor(bounds, dtype=index, device=CUDA) for bounds in (bounds_q, bounds_k))
    out, lse = packed_attention_triton(
        q, k, v, cu_q, cu_k, scale, causal=causal, return_lse=True, path=path, **options
    )  # fmt: skip
    torch.cuda.synchronize()
    wanted, wanted_lse = naive_packed_attention(
        q.double(), k.double(), v.double(), bounds_q, bounds_k, scale, causal=causal
    )
    assert out.dtype == q.dtype
    assert out.isfinite().all()
    torch.testing.assert_close(lse.double(), wanted_lse, atol=2e-3, rtol=1e-3)
    epsilon = {torch.float16: 1e-3, torch.bfloat16: 6e-3, torch.float32: 1e-5}[q.dtype]
    error = (out.double() - wanted).norm() / wanted.norm().clamp_min(1e-9)
    assert error < epsilon, float(error)
    assert (out.double() - wanted).abs().max() < (1e-5 if q.dtype == torch.float32 else 2e-2) * max(
        1.0, float(wanted.abs().max())
    )
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths(path, name, causal, monkeypatch):
    poisoned(monkeypatch)
    lengths_q, lengths_k = LENGTHS[name]
    lengths_k = lengths_k or lengths_q
    q, k, v = draw(lengths_q, lengths_k, 6, 2, 128, 128, torch.bfloat16)
    check(path, q, k, v, bounds_of(lengths_q), bounds_of(lengths_k), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dim", "value_dim"),
    [(64, 64), (8, 8), (24, 40), (96, 96), (120, 120), (192, 128), (192, 192), (256, 256), (64, 128), (80, 256)],
)
def test_head_sizes(path, dim, value_dim, causal, monkeypatch):
    poisoned(monkeypatch)
    lengths = [77, 260, 0, 33]
    q, k, v = draw(lengths, lengths, 7, 1, dim, value_dim, torch.float16)
    check(path, q, k, v, bounds_of(lengths), bounds_of(lengths), causal=causal, index=torch.int64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (5, 5), (8, 1), (14, 2), (32, 8)])
def test_heads(path, heads, key_heads, causal):
    lengths = [400, 129, 700]
    q, k, v = draw(lengths, lengths, heads, key_heads, 64, 64, torch.bfloat16)
    check(path, q, k, v, bounds_of(lengths), bounds_of(lengths), causal=causal)


def test_a_long_call_uses_every_program_more_than_once(path):
    lengths = [1500, 131, 2900, 77]
    for causal in (False, True):
        q, k, v = draw(lengths, lengths, 16, 4, 128, 128, torch.bfloat16)
        check(path, q, k, v, bounds_of(lengths), bounds_of(lengths), causal=causal)


def test_float32():
    lengths = [77, 260, 0, 33]
    for dim in (40, 128, 256):
        q, k, v = draw(lengths, lengths, 4, 2, dim, dim, torch.float32)
        for causal in (False, True):
            check("portable", q, k, v, bounds_of(lengths), bounds_of(lengths), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_what_a_neighbour_holds_stays_with_it(path, causal):
    lengths = [70, 100, 300, 40, 200]
    bounds = bounds_of(lengths)
    q, k, v = draw(lengths, lengths, 4, 2, 128, 128, torch.bfloat16)
    clean = check(path, q, k, v, bounds, bounds, causal=causal)
    for number in (1, 3):
        rows = slice(bounds[number], bounds[number + 1])
        for tensor in (q, k, v):
            tensor[rows] = math.nan
    cu = torch.tensor(bounds, dtype=torch.int32, device=CUDA)
    out, lse = packed_attention_triton(q, k, v, cu, cu, 128**-0.5, causal=causal, return_lse=True, path=path)
    for number in (0, 2, 4):
        rows = slice(bounds[number], bounds[number + 1])
        assert torch.equal(out[rows], clean[rows])
        assert lse[:, rows].isfinite().all()
    assert out[bounds[1] : bounds[2]].isnan().all()


def test_strided_inputs(path):
    lengths = [100, 31, 260]
    bounds = bounds_of(lengths)
    gen = torch.Generator(CUDA).manual_seed(3)
    fused = torch.randn(sum(lengths), 12, 64, device=CUDA, generator=gen).bfloat16()
    q, k, v = fused.split(4, 1)
    check(path, q, k, v, bounds, bounds, causal=True)
    heads_first = torch.randn(4, sum(lengths), 128, device=CUDA, generator=gen).bfloat16().transpose(0, 1)
    check(path, heads_first, heads_first, heads_first, bounds, bounds, causal=False)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_outside_every_sequence_are_zero(path, causal, monkeypatch):
    poisoned(monkeypatch)
    q, k, v = draw([300], [300], 4, 2, 64, 64, torch.bfloat16)
    cu_q = torch.tensor([20, 90, 170], device=CUDA)
    cu_k = torch.tensor([10, 80, 200], device=CUDA)
    out, lse = packed_attention_triton(q, k, v, cu_q, cu_k, 0.1, causal=causal, return_lse=True, path=path)
    wanted, wanted_lse = naive_packed_attention(
        q.double(), k.double(), v.double(), [20, 90, 170], [10, 80, 200], 0.1, causal=causal
    )
    assert (out.double() - wanted).abs().max() < 2e-2
    assert not out[:20].any()
    assert not out[170:].any()
    torch.testing.assert_close(lse.double(), wanted_lse, atol=2e-3, rtol=1e-3)


def test_boundaries_that_lie_do_not_leave_the_tensors(path):
    q, k, v = draw([300], [300], 4, 2, 64, 64, torch.bfloat16)
    for bounds in ([0, 250, 100, 300], [-5, 400, 7, 2**31 - 1], [0, 300, 0, 300, 0, 300], [300, 0]):
        cu = torch.tensor(bounds, device=CUDA)
        packed_attention_triton(q, k, v, cu, cu, 0.1, return_lse=True, path=path)
        torch.cuda.synchronize()


def test_the_boundaries_are_read_through_their_stride(path):
    lengths = [100, 31, 260]
    q, k, v = draw(lengths, lengths, 4, 2, 64, 64, torch.bfloat16)
    cu = torch.tensor(bounds_of(lengths), device=CUDA)
    spread = torch.full((2 * len(cu),), 7, device=CUDA)
    spread[::2] = cu
    out, _ = packed_attention_triton(q, k, v, spread[::2], spread[::2], 0.1, path=path)
    assert torch.equal(out, packed_attention_triton(q, k, v, cu, cu, 0.1, path=path)[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dim", "cut"),
    [
        (64, (3, 128, 2, True, True)),
        (64, (2, 128, 3, True, True)),
        (128, (2, 128, 2, True, True)),
        (128, (2, 64, 4, True, True)),
        (128, (3, 64, 3, True, True)),
        (128, (2, 128, 2, False, False)),
    ],
)
def test_other_cuts(dim, cut, causal):
    lengths = [1500, 131, 0, 900, 77]
    bounds = bounds_of(lengths)
    q, k, v = draw(lengths, lengths, 8, 4, dim, dim, torch.bfloat16)
    if not launch_hopper.applies(q, k, v):
        pytest.skip("needs a Hopper device and a Triton with the Gluon that its kernel uses")
    cu = torch.tensor(bounds, dtype=torch.int32, device=CUDA)
    out = torch.full_like(q, math.nan)
    launch_hopper.attend(q, k, v, cu, cu, 0.1, out, None, causal=causal, config=HopperConfig(*cut))
    wanted, _ = naive_packed_attention(q.double(), k.double(), v.double(), bounds, bounds, 0.1, causal=causal)
    assert (out.double() - wanted).norm() / wanted.norm() < 6e-3


def test_replay_in_a_graph_reads_new_boundaries(path):
    q, k, v = draw([300], [300], 4, 2, 64, 64, torch.bfloat16)
    cu = torch.tensor([0, 100, 300], dtype=torch.int32, device=CUDA)
    packed_attention_triton(q, k, v, cu, cu, 0.1, path=path)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = packed_attention_triton(q, k, v, cu, cu, 0.1, path=path)
    for bounds in ([0, 100, 300], [0, 299, 300], [0, 0, 300]):
        cu.copy_(torch.tensor(bounds))
        graph.replay()
        wanted, _ = naive_packed_attention(q.double(), k.double(), v.double(), bounds, bounds, 0.1)
        assert (out.double() - wanted).norm() / wanted.norm() < 6e-3
