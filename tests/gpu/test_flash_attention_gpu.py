"""The flash attention kernels on a GPU, against the float64 reference: results, log denominators and caches."""

import math
from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton")

from tensorpact_kernels import flash_attn_varlen_func, flash_attn_with_kvcache
from tensorpact_kernels.flash_attention import launch_hopper
from tensorpact_kernels.flash_attention.launch import launch_kvcache, launch_varlen
from tensorpact_kernels.flash_attention.naive import naive_kvcache, naive_varlen
from tensorpact_kernels.flash_attention.plan import TileConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = "cuda"
EPSILON = {torch.float16: 1.5e-3, torch.bfloat16: 8e-3}
CACHES = ("k_cache", "v_cache")
HOPPER = "needs a Hopper device and a Triton with the Gluon that its kernel uses"
PAGES = "its copy unit wants pages of a power of two, from 8 on"
# What the public test of the cache goes through, as (queries, slots).
PUBLIC_SIZES = [
    (1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000), (128, 128), (256, 512),
    (2048, 3577),
]  # fmt: skip
# What the public test of packed sequences goes through, as (queries, keys).
PUBLIC_LENGTHS = [
    (1, 1), (1, 3), (2, 1), (511, 1), (3, 513), (64, 128), (128, 128), (256, 256), (113, 203), (128, 217), (113, 211),
    (108, 256), (256, 512), (307, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048),
]  # fmt: skip


def gen(seed):
    return torch.Generator(CUDA).manual_seed(seed)


def draw(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, device=CUDA, generator=gen(seed + sum(shape))).to(dtype)


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=CUDA)


def between(low, high, count, seed=0):
    return torch.randint(low, high + 1, (count,), device=CUDA, generator=gen(seed), dtype=torch.int32)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Fill new tensors with NaN, so that an element that is not written shows."""
    allocate = torch.empty

    def empty(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", empty)


def upcast(arguments):
    return {
        key: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in arguments.items()
    }


def cache_call(
    batch=5,
    queries=1,
    slots=339,
    heads=6,
    key_heads=2,
    dim=128,
    value_dim=None,
    page=None,
    lengths=None,
    room=0,
    dtype=torch.bfloat16,
    seed=0,
):
    """Draw a call: lengths up to ``slots - room`` in a cache of ``slots``, NaN wherever no sequence has a key."""
    value_dim = dim if value_dim is None else value_dim
    lengths = between(min(queries, slots - room), slots - room, batch, seed) if lengths is None else lengths
    arguments = {"q": draw(batch, queries, heads, dim, seed=seed, dtype=dtype), "cache_seqlens": lengths}
    columns = 0 if page is None else -(-slots // page)
    shape = (batch, slots) if page is None else (batch * columns + 3, page)
    for name, width in (("k_cache", dim), ("v_cache", value_dim)):
        arguments[name] = draw(*shape, key_heads, width, seed=seed + width, dtype=dtype)
    if page is not None:
        order = torch.randperm(shape[0], device=CUDA, generator=gen(seed))
        arguments["page_table"] = order[: batch * columns].reshape(batch, columns).int()
    return only_used(arguments)


def only_used(arguments):
    lengths = arguments["cache_seqlens"].tolist()
    for name in CACHES:
        cache = arguments[name]
        if cache is None:
            continue
        kept = cache.clone()
        cache.fill_(math.nan)
        for sequence, length in enumerate(lengths):
            first = int(arguments["cache_leftpad"][sequence]) if "cache_leftpad" in arguments else 0
            at = slots_of(cache, arguments, sequence, first, length)
            cache[at] = kept[at]
    return arguments


def slots_of(cache, arguments, sequence, first, last):
    row = sequence if "cache_batch_idx" not in arguments else int(arguments["cache_batch_idx"][sequence])
    slots = torch.arange(first, last, device=CUDA)
    if "page_table" not in arguments:
        return torch.full_like(slots, row), slots
    page = cache.shape[1]
    table = arguments["page_table"][row]
    return table[slots // page].long(), slots % page


def compare(got, wanted, dtype):
    (out, lse), (expected, expected_lse) = got, wanted
    assert out.dtype == dtype
    assert out.shape == expected.shape
    assert out.isfinite().all()
    error = (out.double() - expected).norm() / expected.norm().clamp_min(1e-9)
    assert error < EPSILON[dtype], float(error)
    assert (out.double() - expected).abs().max() < 2e-2 * max(1.0, float(expected.abs().max()))
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), expected_lse, atol=3e-3, rtol=1e-3)


def check(launch, reference, arguments, **hints):
    """Compare result, log denominators and what was written to the caches with float64."""
    dtype = arguments["v_cache" if "v_cache" in arguments else "v"].dtype
    expected = upcast(arguments)
    caches = {name: arguments[name].clone() for name in CACHES if arguments.get(name) is not None}
    wanted = reference(**expected, return_softmax_lse=True)
    got = launch(**arguments | caches, return_softmax_lse=True, **hints)
    torch.cuda.synchronize()
    compare(got, wanted, dtype)
    for name, cache in caches.items():
        torch.testing.assert_close(cache.double(), expected[name], atol=1e-2, rtol=1e-2, equal_nan=True)
    return got


@pytest.fixture(params=["portable", "hopper"])
def path(request):
    probe = torch.empty(1, 1, 64, device=CUDA)
    if request.param == "hopper" and not launch_hopper.runs(probe):
        pytest.skip(HOPPER)
    return request.param


def cached(path, arguments, splits=(0, 1, 5), **hints):
    for number in splits:
        check(launch_kvcache, naive_kvcache, arguments, num_splits=number, path=path, **hints)


@pytest.mark.parametrize(("queries", "slots"), PUBLIC_SIZES)
@pytest.mark.parametrize(("key_heads", "mask"), [(6, "full"), (1, "causal"), (3, "local"), (3, "full")])
def test_the_public_sizes(queries, slots, key_heads, mask):
    masks = {"full": {}, "causal": {"causal": True}, "local": {"window_size": (70, 3)}}
    arguments = cache_call(5, queries, slots, 6, key_heads, 64, seed=queries)
    cached(None, arguments | masks[mask], splits=(0, 1))


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("queries", "slots"), [(1, 339), (3, 799), (64, 800), (16, 2000)])
def test_the_public_sizes_with_new_tokens(queries, slots, new, sinks):
    arguments = cache_call(5, queries, slots, 6, 3, 64, room=new) | {"causal": True}
    arguments |= {"k": draw(5, new, 3, 64, seed=3), "v": draw(5, new, 3, 64, seed=4)}
    arguments |= {"sinks": draw(6)} if sinks else {}
    cached(None, arguments, splits=(0, 1))


@pytest.mark.parametrize("page", [None, 1, 5, 8, 16, 32, 64, 128, 256])
def test_pages(path, page):
    if path == "hopper" and page in (1, 5):
        pytest.skip(PAGES)
    cached(path, cache_call(4, 1, 700, 8, 2, 128, page=page))
    cached(path, cache_call(3, 3, 129, 4, 2, 64, page=page) | {"causal": True}, splits=(2,))


@pytest.mark.parametrize(("page", "dtype"), [(None, torch.float16), (16, torch.bfloat16)])
@pytest.mark.parametrize(
    ("dim", "value_dim"), [(64, 64), (128, 128), (256, 256), (96, 96), (192, 128), (72, 40), (64, 256), (8, 24)]
)
def test_head_sizes(path, dim, value_dim, page, dtype):
    arguments = cache_call(3, 2, 400, 6, 2, dim, value_dim, page, dtype=dtype) | {"causal": True}
    cached(path, arguments, splits=(1,) if page is None else (4,))


@pytest.mark.parametrize("heads", [(1, 1), (5, 5), (7, 1), (16, 1), (24, 8), (40, 2), (64, 1)])
@pytest.mark.parametrize("queries", [1, 7])
def test_heads(path, heads, queries):
    if path == "hopper" and queries * heads[0] // heads[1] > launch_hopper.MAX_ROWS:
        pytest.skip("more query rows than a decode has")
    cached(path, cache_call(3, queries, 500, *heads, 128, page=64) | {"causal": True}, splits=(3,))


MASKS = {
    "causal": {"causal": True},
    "left": {"window_size": (100, -1)},
    "right": {"window_size": (-1, 2)},
    "both": {"window_size": (65, 1)},
    "causal window": {"causal": True, "window_size": (64, 0)},
    "chunk": {"attention_chunk": 70},
    "causal chunk": {"attention_chunk": 64, "causal": True},
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("queries", "leftpad", "page"), [(1, False, 32), (1, True, None), (4, True, 32), (90, False, None), (90, True, 32)]
)
def test_masks(path, name, queries, leftpad, page):
    if path == "hopper" and queries > 4:
        pytest.skip("more query rows than a decode has")
    arguments = cache_call(4, queries, 480, 4, 2, 64, page=page, lengths=ints(480, 333, 200, 191))
    if leftpad:
        arguments = only_used(arguments | {"cache_leftpad": ints(0, 100, 64, 1)})
    cached(path, arguments | MASKS[name], splits=(1,) if queries == 1 else (4,))


@pytest.mark.parametrize(("softcap", "sinks"), [(0.0, True), (5.0, False), (50.0, True)])
def test_softcap_and_sinks(path, softcap, sinks):
    arguments = cache_call(4, 1, 300, 8, 2, 128, page=16) | {"softcap": softcap, "softmax_scale": 0.3}
    arguments |= {"sinks": 3 * draw(8)} if sinks else {}
    cached(path, arguments, splits=(1, 3))


def test_rows_by_number(path):
    arguments = cache_call(6, 2, 260, 6, 2, 128) | {"causal": True}
    numbers = ints(5, 0, 3)
    arguments |= {"q": arguments["q"][:3], "cache_batch_idx": numbers, "cache_seqlens": ints(260, 40, 199)}
    arguments |= {name: draw(*arguments[name].shape, seed=9) for name in CACHES}
    cached(path, only_used(arguments))
    paged = cache_call(6, 2, 260, 6, 2, 128, page=64)
    paged |= {"q": arguments["q"], "cache_batch_idx": numbers, "cache_seqlens": arguments["cache_seqlens"]}
    paged |= {name: draw(*paged[name].shape, seed=9) for name in CACHES}
    cached(path, only_used(paged))


@pytest.mark.parametrize("bounds", [(0, 1, 2, 3, 4), (0, 3, 3, 4, 9), (2, 4, 4, 9, 11)])
def test_packed_queries(path, bounds):
    arguments = cache_call(4, 1, 400, 8, 4, 128, page=16, lengths=ints(400, 77, 5, 123))
    longest = max(after - before for before, after in pairwise(bounds))
    arguments |= {"q": draw(12, 8, 128), "cu_seqlens_q": ints(*bounds), "max_seqlen_q": longest, "causal": True}
    cached(path, arguments)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("mask", "rotary_dim", "page"),
    [
        ({}, 16, None),
        ({"causal": True}, 48, 16),
        ({"window_size": (50, 0)}, 128, 1),
        ({"window_size": (400, 400)}, 64, 16),
        ({"attention_chunk": 100}, 32, None),
    ],
)
def test_new_tokens_are_rotated(path, interleaved, mask, rotary_dim, page):
    if path == "hopper" and page == 1:
        pytest.skip(PAGES)
    arguments = cache_call(3, 4, 300, 6, 2, 128, 64, page, room=3) | mask | {"rotary_interleaved": interleaved}
    arguments |= {"k": draw(3, 3, 2, 128, seed=5), "v": draw(3, 3, 2, 64, seed=6)}
    turns = torch.rand(320, rotary_dim // 2, device=CUDA, generator=gen(1)) * 6
    arguments |= {"rotary_cos": turns.cos().bfloat16(), "rotary_sin": turns.sin().bfloat16()}
    check(launch_kvcache, naive_kvcache, arguments, path=path)
    check(launch_kvcache, naive_kvcache, arguments | {"rotary_seqlens": ints(0, 7, 310)}, path=path)


@pytest.mark.parametrize("page", [None, 16])
def test_new_tokens_come_packed(path, page):
    arguments = cache_call(4, 1, 300, 6, 2, 128, page=page, room=6) | {"cu_seqlens_k_new": ints(0, 2, 2, 8, 9)}
    arguments |= {"k": draw(9, 2, 128, seed=5), "v": draw(9, 2, 128, seed=6)}
    cached(path, arguments)


@pytest.mark.parametrize(("heads", "page"), [(8, 1), (8, 64), (16, 16), (24, 64), (128, 16), (100, 64)])
@pytest.mark.parametrize("with_keys", [False, True])
def test_queries_of_values(path, heads, page, with_keys):
    if path == "hopper" and page == 1:
        pytest.skip(PAGES)
    arguments = cache_call(2, 1, 257, heads, 1, 64, 512, page) | {"qv": draw(2, 1, heads, 512, seed=8)}
    if not with_keys:
        arguments |= {"q": None, "k_cache": None, "only_qv": True}
    cached(path, arguments, splits=(1, 3))
    cached(path, arguments | {"q": arguments["q"], "causal": True, "softcap": 9.0, "sinks": draw(heads)}, splits=(2,))


@pytest.mark.parametrize("queries", [2, 70])
def test_several_queries_of_values(path, queries):
    arguments = cache_call(2, queries, 600, 8, 1, 64, 512, 32) | {"qv": draw(2, queries, 8, 512, seed=8)}
    cached(path, arguments | {"causal": True}, splits=(1, 3))


def test_one_length_and_no_length(path):
    arguments = cache_call(3, 1, 320, 4, 2, 128, lengths=ints(320, 320, 320))
    cached(path, arguments | {"cache_seqlens": 300})
    cached(path, arguments | {"cache_seqlens": None})


def test_what_does_not_exist_is_hidden(path):
    arguments = cache_call(4, 1, 256, 8, 2, 128, page=64)
    arguments |= {name: draw(*arguments[name].shape, seed=3) for name in CACHES}
    arguments["cache_seqlens"] = ints(256, 256, 300, 120)
    arguments["page_table"][0, 1] = -1
    arguments["page_table"][1, 0] = 1 << 20
    cached(path, arguments, splits=(1, 2))
    cached(path, arguments | {"cache_batch_idx": ints(0, -1, 4, 1 << 20)}, splits=(1, 2))


def test_no_keys_at_all(path):
    arguments = cache_call(3, 1, 128, 4, 2, 128, page=16, lengths=ints(0, 0, 0))
    cached(path, arguments)
    cached(path, arguments | {"sinks": draw(4)}, splits=(1, 3))


def test_a_batch_of_unequal_lengths(path):
    lengths = torch.cat((between(0, 40, 60), ints(9000, 4097, 64, 63)))
    cached(path, cache_call(64, 1, 9000, 8, 2, 128, page=16, lengths=lengths), splits=(0, 16))


def test_offsets_beyond_31_bits(path):
    free, _ = torch.cuda.mem_get_info()
    if free < 14 << 30:
        pytest.skip("needs 14 GiB")
    # The last slots of the second row lie behind 2 ** 31 elements.
    cache = torch.zeros(2, 1_100_000, 8, 128, dtype=torch.bfloat16, device=CUDA)
    tail = draw(1, 200, 8, 128)
    cache[1, -200:] = tail
    q = draw(1, 1, 16, 128, seed=2)
    arguments = {"q": q, "cache_seqlens": ints(1_100_000), "cache_leftpad": ints(1_099_800), "cache_batch_idx": ints(1)}
    got = launch_kvcache(**arguments, k_cache=cache, v_cache=cache, return_softmax_lse=True, path=path)
    wanted = naive_kvcache(q.double(), tail.double(), tail.double(), return_softmax_lse=True)
    compare(got, wanted, torch.bfloat16)


def test_a_captured_graph_reads_new_lengths(path):
    arguments = cache_call(4, 1, 512, 8, 2, 128, page=16, lengths=ints(512, 512, 512, 512))
    arguments |= {"num_splits": 3}
    launch_kvcache(**arguments, path=path)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = launch_kvcache(**arguments, return_softmax_lse=True, path=path)
    for lengths in ((1, 512, 64, 200), (300, 5, 0, 17)):
        arguments["cache_seqlens"].copy_(ints(*lengths))
        graph.replay()
        torch.cuda.synchronize()
        compare(got, naive_kvcache(**upcast(arguments), return_softmax_lse=True), torch.bfloat16)


@pytest.mark.parametrize("block_n", [64, 128])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_cut_of_the_hopper_kernel(block_n, stages):
    if not launch_hopper.runs(torch.empty(1, device=CUDA)):
        pytest.skip(HOPPER)
    for page in (None, 16, 128):
        arguments = cache_call(4, 1, 1000, 8, 2, 128, page=page)
        cached("hopper", arguments, splits=(1, 3), config=TileConfig(16, block_n, 4, stages))


def packed_call(lengths, heads=6, key_heads=2, dim=128, value_dim=128, dtype=torch.bfloat16, seed=0):
    def bounds(side):
        ends = [0]
        for pair in lengths:
            ends.append(ends[-1] + pair[side])
        return ints(*ends)

    tokens, keys = (sum(pair[side] for pair in lengths) for side in (0, 1))
    return {
        "q": draw(tokens, heads, dim, seed=seed, dtype=dtype),
        "k": draw(keys, key_heads, dim, seed=seed + 1, dtype=dtype),
        "v": draw(keys, key_heads, value_dim, seed=seed + 2, dtype=dtype),
        "cu_seqlens_q": bounds(0),
        "cu_seqlens_k": bounds(1),
        "max_seqlen_q": max(pair[0] for pair in lengths),
        "max_seqlen_k": max(pair[1] for pair in lengths),
    }


@pytest.mark.parametrize("pair", PUBLIC_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_public_lengths(pair, causal):
    queries, keys = pair
    key_heads = 2 if causal else 6
    lengths = [(1 + queries * part // 5, 1 + keys * (6 - part) // 6) for part in range(6)]
    arguments = packed_call(lengths, 6, key_heads) | {"causal": causal}
    check(launch_varlen, naive_varlen, arguments)
    check(launch_varlen, naive_varlen, arguments, path="portable")
    arguments |= {"sinks": draw(6)}
    check(launch_varlen, naive_varlen, arguments, num_splits=0)
    used = ints(*(max(0, length - part) for part, (length, _) in enumerate(lengths)))
    held = ints(*(max(0, length - 3 * part) for part, (_, length) in enumerate(lengths)))
    for sequence, (begin, length) in enumerate(zip(arguments["cu_seqlens_k"].tolist(), held.tolist(), strict=False)):
        for name in ("k", "v"):
            arguments[name][begin + length : arguments["cu_seqlens_k"][sequence + 1]] = math.nan
    check(launch_varlen, naive_varlen, arguments | {"seqused_q": used, "seqused_k": held})


@pytest.mark.parametrize("dims", [(64, 64), (96, 40), (192, 128), (256, 256), (64, 512)])
@pytest.mark.parametrize("name", MASKS)
def test_packed_masks(name, dims):
    arguments = packed_call([(5, 300), (130, 700), (257, 257), (1, 64)], 4, 2, *dims, dtype=torch.float16)
    check(launch_varlen, naive_varlen, arguments | MASKS[name] | {"softcap": 20.0})


def test_many_short_segments():
    arguments = packed_call([(1, 2048)] * 64, 8, 1) | {"causal": True}
    check(launch_varlen, naive_varlen, arguments, num_splits=0)


@pytest.mark.parametrize("causal", [False, True])
def test_batches(causal):
    arguments = {"q": draw(3, 200, 6, 96), "k": draw(3, 333, 2, 96, seed=1), "v": draw(3, 333, 2, 64, seed=2)}
    arguments |= {"cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": 200, "max_seqlen_k": 333}
    check(launch_varlen, naive_varlen, arguments | {"causal": causal})
    used = {"seqused_q": ints(200, 3, 0), "seqused_k": ints(333, 3, 100)}
    check(launch_varlen, naive_varlen, arguments | used | {"causal": causal, "qv": draw(3, 200, 6, 64, seed=3)})


def test_the_entry_points_write_to_the_callers_result():
    arguments = cache_call(3, 2, 300, 6, 2, 128, page=16) | {"causal": True}
    wide = torch.full((3, 2, 12, 128), math.nan, dtype=torch.bfloat16, device=CUDA)
    out = wide[:, :, ::2]
    got, lse = flash_attn_with_kvcache(**arguments, return_softmax_lse=True, out=out)
    assert got.data_ptr() == out.data_ptr()
    compare((out, lse), naive_kvcache(**upcast(arguments), return_softmax_lse=True), torch.bfloat16)
    assert wide[:, :, 1::2].isnan().all()
    packed = packed_call([(40, 40), (90, 90)]) | {"causal": True}
    out = torch.full((130, 6, 128), math.nan, dtype=torch.bfloat16, device=CUDA)
    got, lse = flash_attn_varlen_func(**packed, return_softmax_lse=True, out=out)
    compare((out, lse), naive_varlen(**upcast(packed), return_softmax_lse=True), torch.bfloat16)
