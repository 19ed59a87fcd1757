"""Runs the flash attention kernels in Triton's interpreter; started by test_flash_attention_interpreter.py."""

import math

import interpreted
import numpy as np
import torch

from tensorpact_kernels.flash_attention.launch import launch_kvcache, launch_varlen
from tensorpact_kernels.flash_attention.naive import naive_kvcache, naive_varlen
from tensorpact_kernels.flash_attention.plan import TileConfig

CASES = {}
SMALL = TileConfig(block_m=16, block_n=16, num_warps=4, num_stages=2)
# The interpreter truncates where the GPU rounds to the nearest bfloat16.
EPSILON = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
WRITTEN = ("k_cache", "v_cache")


def case(function):
    CASES[function.__name__] = (function, {})
    return function


def poison_allocations():
    """Fill what torch.empty returns with NaN, so that an unwritten element shows."""
    allocate = torch.empty

    def poisoned(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    torch.empty = poisoned


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def draw(*shape, seed=0, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + math.prod(shape))).to(dtype)


def upcast(arguments):
    return {
        key: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in arguments.items()
    }


def slots_of(cache, arguments, sequence, first, last):
    """Return the slots of a sequence as index pairs of the cache."""
    row = sequence if "cache_batch_idx" not in arguments else int(arguments["cache_batch_idx"][sequence])
    slots = torch.arange(first, last)
    if "page_table" not in arguments:
        return torch.full_like(slots, row), slots
    page = cache.shape[1]
    return arguments["page_table"][row][slots // page].long(), slots % page


def only_used(arguments):
    """Make every slot NaN that no sequence uses, and give the caches of the call back."""
    lengths = arguments["cache_seqlens"]
    for name in WRITTEN:
        cache = arguments.get(name)
        if cache is None:
            continue
        kept, cache[:] = cache.clone(), math.nan
        for sequence, length in enumerate(lengths.tolist()):
            first = int(arguments["cache_leftpad"][sequence]) if "cache_leftpad" in arguments else 0
            at = slots_of(cache, arguments, sequence, first, length)
            cache[at] = kept[at]
    return arguments


def compare(got, wanted, dtype):
    (out, lse), (expected, expected_lse) = got, wanted
    assert out.dtype == dtype, out.dtype
    assert out.shape == expected.shape, out.shape
    assert out.isfinite().all(), "an element was not written, or is not finite"
    error = (out.double() - expected).norm() / expected.norm().clamp_min(1e-9)
    assert error < EPSILON[dtype], f"relative error {error:.2e}"
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-2, rtol=1e-3)


def check(launch, reference, arguments, config=SMALL, **hints):
    dtype = arguments["v_cache" if launch is launch_kvcache else "v"].dtype
    expected = upcast(arguments)
    for name in WRITTEN:
        if arguments.get(name) is not None:
            expected[name] = expected[name].clone()
    wanted = reference(**expected, return_softmax_lse=True)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    got = launch(**arguments, return_softmax_lse=True, config=config, **hints)
    compare(got, wanted, dtype)
    for name, value in before.items():
        if name in WRITTEN:
            appended = arguments[name]
            torch.testing.assert_close(appended.double(), expected[name], atol=5e-3, rtol=5e-3, equal_nan=True)
        elif name != "out":
            torch.testing.assert_close(arguments[name], value, rtol=0, atol=0, equal_nan=True)
    return got


def cached(arguments, splits=(2,), **options):
    for number in splits:
        fresh = {key: value.clone() if key in WRITTEN else value for key, value in arguments.items()}
        check(launch_kvcache, naive_kvcache, fresh, num_splits=number, **options)


def paged(page, columns, heads=6, key_heads=2, dim=24, value_dim=40, queries=2, seed=1, dtype=torch.float16):
    pages = 3 * columns + 5
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed))
    return {
        "q": draw(3, queries, heads, dim, seed=seed, dtype=dtype),
        "k_cache": draw(pages, page, key_heads, dim, seed=seed + 1, dtype=dtype),
        "v_cache": draw(pages, page, key_heads, value_dim, seed=seed + 2, dtype=dtype),
        "page_table": order[: 3 * columns].reshape(3, columns).int(),
    }


@case
def pages_smaller_than_a_tile():
    arguments = paged(5, 9) | {"cache_seqlens": ints(5, 0, 38), "sinks": draw(6, dtype=torch.bfloat16)}
    arguments["page_table"] = torch.cat((arguments["page_table"], torch.full((3, 2), -1, dtype=torch.int32)), dim=1)
    cached(only_used(arguments))


@case
def pages_of_whole_tiles():
    arguments = paged(32, 2, heads=7, key_heads=1) | {"cache_seqlens": ints(21, 3, 64), "cache_leftpad": ints(2, 3, 18)}
    cached(only_used(arguments), splits=(1,))


@case
def rows_with_a_window():
    arguments = {
        "q": draw(3, 4, 6, 20),
        "k_cache": draw(5, 40, 3, 20, seed=1),
        "v_cache": draw(5, 40, 3, 72, seed=2),
        "cache_seqlens": ints(40, 9, 31),
        "cache_batch_idx": ints(4, 0, 2),
        "cache_leftpad": ints(0, 1, 5),
        "window_size": (9, 2),
    }
    cached(only_used(arguments))


@case
def packed_queries():
    arguments = paged(16, 3, heads=8, dtype=torch.bfloat16)
    arguments |= {"q": draw(11, 8, 24, dtype=torch.bfloat16), "cu_seqlens_q": ints(1, 5, 5, 10), "max_seqlen_q": 5}
    arguments |= {"cache_seqlens": ints(45, 7, 12), "causal": True, "softcap": 3.0}
    cached(only_used(arguments))


@case
def appended_and_rotated():
    arguments = paged(7, 6) | {"k": draw(3, 3, 2, 24), "v": draw(3, 3, 2, 40), "causal": True}
    arguments |= {"rotary_cos": draw(50, 8, seed=3), "rotary_sin": draw(50, 8, seed=4)}
    arguments |= {"cache_seqlens": ints(5, 0, 37)}
    cached(only_used(arguments), splits=(2,))


@case
def appended_packed_to_rows():
    arguments = {
        "q": draw(3, 2, 4, 32),
        "k_cache": draw(4, 30, 4, 32, seed=1),
        "v_cache": draw(4, 30, 4, 16, seed=2),
        "k": draw(7, 4, 32, seed=3),
        "v": draw(7, 4, 16, seed=4),
        "cu_seqlens_k_new": ints(0, 2, 2, 7),
        "rotary_cos": draw(60, 16, seed=5),
        "rotary_sin": draw(60, 16, seed=6),
        "rotary_seqlens": ints(11, 3, 50),
        "rotary_interleaved": False,
        "cache_seqlens": ints(6, 20, 25),
        "cache_batch_idx": ints(3, 0, 1),
    }
    cached(only_used(arguments), splits=(1,))


@case
def rotated_by_the_longest_that_the_caller_says():
    """A mask that only a longer sequence would have still makes positions count up."""
    arguments = {
        "q": draw(3, 2, 24),
        "k_cache": draw(1, 16, 1, 24, seed=1),
        "v_cache": draw(1, 16, 1, 24, seed=2),
        "k": draw(1, 1, 1, 24, seed=3),
        "v": draw(1, 1, 1, 24, seed=4),
        "cache_seqlens": ints(5),
        "cu_seqlens_q": ints(0, 3),
        "rotary_cos": draw(12, 8, seed=5),
        "rotary_sin": draw(12, 8, seed=6),
    }
    for longest, window in ((3, (-1, 2)), (4, (-1, 2)), (20, (-1, 9)), (20, (-1, 19))):
        cached(arguments | {"max_seqlen_q": longest, "window_size": window})


@case
def numbers_of_numpy():
    arguments = paged(16, 2) | {"q": draw(5, 6, 24), "cu_seqlens_q": ints(0, 2, 3, 5), "cache_seqlens": ints(9, 20, 32)}
    arguments |= {"max_seqlen_q": np.int64(2), "window_size": (np.int64(7), np.int32(0)), "softcap": np.float32(2.0)}
    check(launch_kvcache, naive_kvcache, arguments | {"attention_chunk": np.int64(5)}, num_splits=np.int64(2))
    arguments = varlen(window_size=(np.int64(4), np.int64(1)), attention_chunk=np.int64(3))
    for name in ("max_seqlen_q", "max_seqlen_k"):
        arguments[name] = np.int64(arguments[name])
    check(launch_varlen, naive_varlen, arguments)


@case
def chunks():
    arguments = paged(8, 5, heads=2, queries=5) | {"cache_seqlens": ints(37, 5, 40)}
    cached(only_used(arguments | {"cache_leftpad": ints(3, 0, 16), "attention_chunk": 9}))


@case
def queries_of_values():
    arguments = paged(16, 2, dim=16, value_dim=48) | {"cache_seqlens": ints(9, 32, 17), "qv": draw(3, 2, 6, 48, seed=9)}
    cached(only_used(arguments))


@case
def values_alone():
    arguments = paged(5, 4, key_heads=1, value_dim=48) | {"cache_seqlens": ints(19, 20, 1)}
    arguments |= {"qv": draw(3, 2, 6, 48, seed=9), "only_qv": True}
    before = check(launch_kvcache, naive_kvcache, only_used(arguments), num_splits=2)
    keys = arguments["k_cache"]
    arguments |= {"q": None, "k_cache": None}
    after = check(launch_kvcache, naive_kvcache, arguments, num_splits=2)
    assert torch.equal(before[0], after[0]), "keys were looked at"
    # New values come without a cache of keys.
    arguments |= {"k": draw(3, 1, 1, 24), "v": draw(3, 1, 1, 48), "cache_seqlens": ints(18, 4, 0)}
    check(launch_kvcache, naive_kvcache, only_used(arguments))
    # Keys are rotated on their way into a cache that nothing reads; queries of values are not.
    arguments |= {"k_cache": keys, "rotary_cos": draw(19, 8, seed=5), "rotary_sin": draw(19, 8, seed=6), "causal": True}
    check(launch_kvcache, naive_kvcache, only_used(arguments))


@case
def one_length_for_all():
    arguments = paged(16, 2) | {"cache_seqlens": 21, "out": draw(3, 2, 12, 40)[:, :, ::2]}
    out, _ = check(launch_kvcache, naive_kvcache, arguments, num_splits=2)
    assert out is arguments["out"]
    del arguments["cache_seqlens"], arguments["out"]
    check(launch_kvcache, naive_kvcache, arguments, num_splits=2, config=None)


@case
def what_does_not_exist_is_hidden():
    arguments = paged(16, 3) | {"cache_seqlens": ints(45, 60, 30), "k": draw(3, 2, 2, 24), "v": draw(3, 2, 2, 40)}
    arguments["page_table"][0, 1] = -1
    arguments["page_table"][2, 0] = 99
    cached(arguments)
    # A window puts the first visible slot behind the capacity, too.
    late = arguments | {"cache_batch_idx": ints(0, 3, -1), "cache_seqlens": ints(47, 90, 30), "window_size": (5, 0)}
    cached(late, splits=(2,))


@case
def long_queries():
    # Two tiles of rows, and tiles of keys before, within and behind what every row of them sees.
    arguments = paged(16, 4, heads=2, queries=18) | {"cache_seqlens": ints(64, 18, 47), "window_size": (20, 3)}
    cached(only_used(arguments | {"cache_leftpad": ints(1, 17, 0)}))


def varlen(**changes):
    return {
        "q": draw(45, 2, 24),
        "k": draw(52, 1, 24, seed=1),
        "v": draw(52, 1, 40, seed=2),
        "cu_seqlens_q": ints(0, 12, 12, 39, 45),
        "cu_seqlens_k": ints(0, 30, 33, 47, 52),
        "max_seqlen_q": 27,
        "max_seqlen_k": 30,
    } | changes


@case
def packed_sequences():
    check(launch_varlen, naive_varlen, varlen(window_size=(4, -1), sinks=draw(2, dtype=torch.bfloat16)), num_splits=2)
    used = varlen(seqused_q=ints(9, 0, 27, 3), seqused_k=ints(30, 2, 0, 4))
    for tensor, begin, lengths in (("k", used["cu_seqlens_k"], used["seqused_k"]),):
        for sequence, length in enumerate(lengths.tolist()):
            used[tensor][begin[sequence] + length : begin[sequence + 1]] = math.nan
    check(launch_varlen, naive_varlen, used | {"causal": True})


@case
def packed_sequences_go_to_packed_attention():
    out = draw(45, 2, 40, seed=5)
    got, _ = check(launch_varlen, naive_varlen, varlen(causal=True, out=out), config=None)
    assert got is out


@case
def batches():
    arguments = {"q": draw(3, 9, 4, 24), "k": draw(3, 20, 2, 24, seed=1), "v": draw(3, 20, 2, 40, seed=2)}
    arguments |= {"cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": 9, "max_seqlen_k": 20}
    check(launch_varlen, naive_varlen, arguments | {"causal": True})
    arguments |= {"seqused_k": ints(20, 0, 7), "seqused_q": ints(2, 9, 0), "qv": draw(3, 9, 4, 40, seed=3)}
    check(launch_varlen, naive_varlen, arguments)


@case
def nothing():
    arguments = paged(16, 2) | {"cache_seqlens": ints(0, 0, 0)}
    cached(arguments)
    for queries in (arguments["q"][:, :0], arguments["q"][:0]):
        some = {"q": queries, "cache_seqlens": ints(0, 0, 0)[: len(queries)]}
        if not len(queries):
            some["page_table"] = arguments["page_table"][:0]
        out, lse = launch_kvcache(**arguments | some, return_softmax_lse=True)
        assert out.shape == (*queries.shape[:3], 40)
        assert lse.shape == (queries.shape[0], 6, queries.shape[1])


if __name__ == "__main__":
    poison_allocations()
    interpreted.main(CASES)
