"""Calls of every kernel with numbers that point outside their tensors: what must hold whatever they say.

A scenario is a right call. Each of its tensors of numbers is given entries from far and near outside, and then
nothing around any tensor is touched, no NaN of what no entry may reach comes out, every element of the result is
written, and the rows that have no such number come out as before, to the bit.
"""

import random
from dataclasses import dataclass, field

import torch
from guarded import Guards

from tensorpact_kernels._launching import runs_on_hopper
from tensorpact_kernels.causal_kv_cache.launch import shift_and_write_triton
from tensorpact_kernels.flash_attention import plan as flash_plan
from tensorpact_kernels.flash_attention.launch import launch_kvcache, launch_varlen
from tensorpact_kernels.packed_attention.launch import TileConfig as PackedTile
from tensorpact_kernels.packed_attention.launch import packed_attention_triton
from tensorpact_kernels.replayssm.launch import StagedConfig, StreamedConfig, packed_decode_triton
from tensorpact_kernels.replayssm.launch import replayssm_decode_triton as replay_triton
from tensorpact_kernels.sparse_prefill.launch import TileConfig as SparseTile
from tensorpact_kernels.sparse_prefill.launch import sparse_decode_triton, sparse_prefill_triton

NEAR = (-1, -2, -77)
EXTREMES = {torch.int32: (2**31 - 1, -(2**31)), torch.int64: (2**31, 2**32 + 1, 2**40, 2**63 - 1, -(2**63))}


@dataclass
class Scenario:
    """A right call of a kernel.

    Attributes:
        arguments: What the launcher takes.
        run: Launches, and returns the results: tensors with the rows of the batch first.
        limits: Name of each tensor of numbers to the first number behind its range.
        rows: Says for a name and a place which rows of the results may change; None for all of them.
        held: Names of tensors that are written in place, with the entries of their first axis that nothing may change.
        beyond: What lies around a tensor of numbers.
        options: Passed on as they are.
    """

    arguments: dict
    run: object
    limits: dict
    rows: object
    held: dict = field(default_factory=dict)
    beyond: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)


def outside(dtype, limit, rng):
    """Numbers outside ``range(limit)``: nearest, near and extreme ones."""
    found = [*NEAR, limit, limit + 1, limit + 13, *EXTREMES[dtype]]
    rng.shuffle(found)
    return found


def launched(scenario, given):
    """Launch on guarded copies; return the results and the tensors that were written in place."""
    guards = Guards()
    tensors = {
        name: guards.around(value, scenario.beyond.get(name, 1)) if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }
    with guards.on_allocations():
        results = scenario.run(tensors, scenario.options)
    guards.assert_intact()
    return results, {name: tensors[name] for name in scenario.held}


def check(make, device="cpu", rounds=1, seed=0):
    """Give hostile numbers to every tensor of numbers of a scenario, one after the other."""
    rng = random.Random(seed)
    scenario = make(device)
    clean, clean_held = launched(scenario, scenario.arguments)
    assert all(not result.isnan().any() for result in clean), "the right call is not finite"
    for name, limit in scenario.limits.items():
        for _ in range(rounds):
            numbers = scenario.arguments[name].clone()
            flat, wrong = numbers.view(-1), outside(numbers.dtype, limit, rng)
            places = rng.sample(range(flat.numel()), max(1, min(len(wrong), flat.numel() // 2)))
            for place, number in zip(places, wrong, strict=False):
                flat[place] = number
            results, held = launched(scenario, scenario.arguments | {name: numbers})
            what = f"{name} with {wrong[: len(places)]} at {places}"
            for result in results:
                assert not result.isnan().any(), f"{what}: a NaN came out, or an element was not written"
            changed = {row for place in places for row in scenario.rows(scenario.arguments, name, place) or ()}
            if scenario.rows(scenario.arguments, name, places[0]) is not None:
                same = [row for row in range(len(clean[0])) if row not in changed]
                for result, before in zip(results, clean, strict=True):
                    assert torch.equal(result[same], before[same]), f"{what}: another row changed"
            for tensor, entries in scenario.held.items():
                before = scenario.arguments[tensor]
                for entry in entries:
                    assert same_bits(held[tensor][entry], before[entry]), f"{what}: {tensor}[{entry}] was written"
    return clean_held


def same_bits(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def floats(*shape, dtype, device, seed=0):
    gen = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=gen).to(dtype).to(device)


def ints(*numbers, dtype=torch.int32, device):
    return torch.tensor(numbers, dtype=dtype, device=device)


# Sparse attention: the last rows of each pool are NaN, no index names them, and indices around a list do.


def _list(counts, rows, dtype, device, seed):
    gen = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, rows - 2, (sum(counts),), generator=gen)
    indices[::5] = -1
    indptr = torch.tensor([0, *counts]).cumsum(0)
    return indices.to(dtype).to(device), indptr.to(dtype).to(device)


def _token_rows(lists):
    def rows(arguments, name, place):
        for indices, indptr in lists:
            if name == indices:
                ends = arguments[indptr].tolist()
                return [t for t in range(len(ends) - 1) if ends[t] <= place < ends[t + 1]]
            if name == indptr:
                return [place - 1, place]
        raise KeyError(name)

    return rows


def sparse_prefill(device, *, index=torch.int32, heads=3, dim=16, dtype=torch.float16, config=None, path=None):
    pool, new = (floats(rows, dim, dtype=dtype, device=device) for rows in (23, 9))
    pool[-2:], new[-2:] = torch.nan, torch.nan
    prefix = _list([7, 0, 18, 33, 2], 23, index, device, 1)
    extend = _list([4, 3, 1, 2, 17], 9, index, device, 2)
    arguments = {
        "q": floats(5, heads, dim, dtype=dtype, device=device),
        "unified_kv": pool,
        "kv_indices_prefix": prefix[0],
        "kv_indptr_prefix": prefix[1],
        "kv": new,
        "kv_indices_extend": extend[0],
        "kv_indptr_extend": extend[1],
        "attn_sink": floats(heads, dtype=torch.float32, device=device),
    }

    def run(tensors, options):
        return sparse_prefill_triton(**tensors, **options)

    lists = [("kv_indices_prefix", "kv_indptr_prefix"), ("kv_indices_extend", "kv_indptr_extend")]
    return Scenario(
        arguments,
        run,
        {"kv_indices_prefix": 23, "kv_indptr_prefix": 61, "kv_indices_extend": 9, "kv_indptr_extend": 28},
        _token_rows(lists),
        beyond={"kv_indices_prefix": 21, "kv_indices_extend": 7},
        options={"softmax_scale": 0.3, "return_lse": True, "config": config, "path": path},
    )


def sparse_decode(
    device,
    *,
    index=torch.int32,
    heads=3,
    dim=16,
    dtype=torch.float16,
    splits=1,
    quantised=False,
    config=None,
    path=None,
):
    base = sparse_prefill(device, index=index, heads=heads, dim=dim, dtype=dtype).arguments
    arguments = {
        "q": base["q"],
        "unified_kv": base["unified_kv"],
        # The decode has no mark for an entry to skip.
        "kv_indices": base["kv_indices_prefix"].clamp(min=0),
        "kv_indptr": base["kv_indptr_prefix"],
        "attn_sink": base["attn_sink"],
    }
    if quantised:
        arguments["unified_kv"] = arguments["unified_kv"].to(torch.float8_e4m3fn)
        arguments["kv_scales"] = 1 + floats(23, dim // 64, dtype=torch.float32, device=device).abs()

    def run(tensors, options):
        return sparse_decode_triton(**tensors, **options)

    return Scenario(
        arguments,
        run,
        {"kv_indices": 23, "kv_indptr": 61},
        _token_rows([("kv_indices", "kv_indptr")]),
        beyond={"kv_indices": 21},
        options={"softmax_scale": 0.3, "return_lse": True, "kv_splits": splits, "config": config, "path": path},
    )


# Kimi delta attention: slots that no row names hold NaN, and so do the unused steps of every ring.

SLOTS = [4, 0, 9, 2, 11, 7]
WRITTEN = [0, 3, 1, 2, 3, 0]
FREE_SLOTS = [slot for slot in range(13) if slot not in SLOTS]


def kda(device, *, ring=4, key_dim=16, value_dim=24, index=torch.int64, config=None, dtype=torch.float32):
    rows, heads, value_heads, slots = len(SLOTS), 1, 2, 13
    state = floats(slots, value_heads, value_dim, key_dim, dtype=dtype, device=device)
    state[FREE_SLOTS] = torch.nan
    arguments = {
        "mixed_qkv": floats(rows, 2 * heads * key_dim + value_heads * value_dim, dtype=dtype, device=device),
        "a": floats(rows, value_heads * key_dim, dtype=dtype, device=device),
        "b": floats(rows, value_heads, dtype=dtype, device=device),
        "A_log": floats(value_heads, dtype=torch.float32, device=device),
        "dt_bias": floats(value_heads * key_dim, dtype=torch.float32, device=device),
        "initial_state": state,
        "out": torch.full((rows, 1, value_heads, value_dim), torch.nan, dtype=dtype, device=device),
        "ssm_state_indices": ints(*SLOTS, dtype=index, device=device),
    }
    limits = {"ssm_state_indices": slots}
    held = ["initial_state"]
    if ring:
        for name, sizes in (("d", (value_heads, ring, value_dim)), ("k", (heads, ring, key_dim))):
            arguments[f"{name}_cache"] = floats(slots, *sizes, dtype=dtype, device=device)
        g = -floats(slots, value_heads, ring, key_dim, dtype=torch.float32, device=device).abs()
        arguments["g_cache"] = g
        arguments["write_pos"] = ints(*WRITTEN, device=device)
        for name in ("d_cache", "k_cache", "g_cache"):
            arguments[name][FREE_SLOTS] = torch.nan
            for slot, written in zip(SLOTS, WRITTEN, strict=True):
                arguments[name][slot, :, written:] = torch.nan
        limits["write_pos"] = ring
        held += ["d_cache", "k_cache", "g_cache"]

    def run(tensors, options):
        (replay_triton if ring else packed_decode_triton)(**tensors, **options)
        return (tensors["out"],)

    return Scenario(
        arguments,
        run,
        limits,
        lambda arguments, name, place: [place],
        held=dict.fromkeys(held, FREE_SLOTS),
        beyond={"ssm_state_indices": FREE_SLOTS[0]},
        options={"scale": 0.4, "use_qk_l2norm_in_kernel": True, "config": config},
    )


# Attention with a cache: pages or rows that no sequence names hold NaN.


def paged(device, *, page=4, columns=5, config=None, path=None, dtype=torch.float16, dims=(16, 24), packed_new=False):
    heads, key_heads, pages, sequences = 2, 1, 19, 3
    table = torch.randperm(pages - 2, generator=torch.Generator().manual_seed(3))[: sequences * columns]
    caches = {
        f"{name}_cache": floats(pages, page, key_heads, dim, dtype=dtype, device=device)
        for name, dim in zip("kv", dims, strict=True)
    }
    free = [p for p in range(pages) if p not in table.tolist()]
    for cache in caches.values():
        cache[free] = torch.nan
    capacity = page * columns
    arguments = {
        "q": floats(sequences, 5, heads, dims[0], dtype=dtype, device=device),
        **caches,
        "page_table": table.view(sequences, columns).int().to(device),
        "cache_seqlens": ints(capacity // 2, 3, capacity - 4, device=device),
    }
    limits = {"page_table": pages, "cache_seqlens": capacity + 1}
    shape = (5,) if packed_new else (sequences, 2)
    for name, dim in zip("kv", dims, strict=True):
        arguments[name] = floats(*shape, key_heads, dim, dtype=dtype, device=device)
    if packed_new:
        arguments["cu_seqlens_k_new"] = ints(0, 2, 2, 5, device=device)
        limits["cu_seqlens_k_new"] = 6
    else:
        for name in ("rotary_cos", "rotary_sin"):
            arguments[name] = floats(capacity + 2, 8, dtype=dtype, device=device)
        arguments["rotary_seqlens"] = ints(3, 0, 5, device=device)
        limits["rotary_seqlens"] = capacity + 2

    def run(tensors, options):
        return launch_kvcache(**tensors, **options)

    def rows(arguments, name, place):
        return None if name == "cu_seqlens_k_new" else [place // columns if name == "page_table" else place]

    return Scenario(
        arguments,
        run,
        limits,
        rows,
        held={"k_cache": free, "v_cache": free},
        beyond={"page_table": free[0]},
        options={"causal": True, "return_softmax_lse": True, "config": config, "path": path},
    )


def cached_rows(device, *, heads=2, splits=0, config=None, path=None, dtype=torch.float16, dims=(16, 24)):
    key_heads, rows, slots = 1, 7, 33
    used = [5, 0, 2]
    free = [row for row in range(rows) if row not in used]
    caches = {
        f"{name}_cache": floats(rows, slots, key_heads, dim, dtype=dtype, device=device)
        for name, dim in zip("kv", dims, strict=True)
    }
    for cache in caches.values():
        cache[free] = torch.nan
    arguments = {
        "q": floats(8, heads, dims[0], dtype=dtype, device=device),
        **caches,
        "cu_seqlens_q": ints(0, 3, 3, 8, device=device),
        "cache_batch_idx": ints(*used, device=device),
        "cache_leftpad": ints(0, 2, 1, device=device),
        "cache_seqlens": ints(17, 33, 20, device=device),
    }

    def run(tensors, options):
        out, lse = launch_kvcache(**tensors, **options)
        return out, lse.transpose(0, 1)

    def changed(arguments, name, place):
        ends = arguments["cu_seqlens_q"].tolist()
        return None if name == "cu_seqlens_q" else range(ends[place], ends[place + 1])

    limits = {"cu_seqlens_q": 9, "cache_batch_idx": rows, "cache_leftpad": slots + 1, "cache_seqlens": slots + 1}
    return Scenario(
        arguments,
        run,
        limits,
        changed,
        held={"k_cache": free, "v_cache": free},
        beyond={"cache_batch_idx": free[0]},
        options={
            "max_seqlen_q": 8,
            "window_size": (9, 1),
            "num_splits": splits,
            "return_softmax_lse": True,
            "config": config,
            "path": path,
        },
    )


def varlen(device, *, config=None, dtype=torch.float16, dims=(16, 24)):
    arguments = {
        "q": floats(9, 2, dims[0], dtype=dtype, device=device),
        "k": floats(13, 1, dims[0], dtype=dtype, device=device),
        "v": floats(13, 1, dims[1], dtype=dtype, device=device),
        "cu_seqlens_q": ints(0, 3, 4, 9, device=device),
        "cu_seqlens_k": ints(0, 5, 6, 13, device=device),
        "seqused_q": ints(3, 1, 4, device=device),
        "seqused_k": ints(4, 1, 7, device=device),
    }

    def run(tensors, options):
        out, lse = launch_varlen(**tensors, **options)
        return out, lse.transpose(0, 1)

    limits = {"cu_seqlens_q": 10, "cu_seqlens_k": 14, "seqused_q": 10, "seqused_k": 14}
    options = {"max_seqlen_q": 9, "max_seqlen_k": 13, "return_softmax_lse": True, "causal": True, "config": config}
    return Scenario(arguments, run, limits, lambda *_: None, options=options)


def packed(device, *, causal=True, config=None, path=None, dtype=torch.float16, dims=(16, 24)):
    arguments = {
        "q": floats(40, 2, dims[0], dtype=dtype, device=device),
        "k": floats(50, 1, dims[0], dtype=dtype, device=device),
        "v": floats(50, 1, dims[1], dtype=dtype, device=device),
        "cu_seqlens_q": ints(0, 3, 3, 24, 40, device=device),
        "cu_seqlens_k": ints(0, 20, 20, 37, 50, device=device),
    }

    def run(tensors, options):
        out, lse = packed_attention_triton(**tensors, **options)
        return out, lse.transpose(0, 1)

    options = {"softmax_scale": 0.3, "causal": causal, "return_lse": True, "config": config, "path": path}
    return Scenario(arguments, run, {"cu_seqlens_q": 41, "cu_seqlens_k": 51}, lambda *_: None, options=options)


def packed_backwards(device, *, config=None, path=None, causal=False):
    """Boundaries that run back and forth name more rows than there are."""
    scenario = packed(device, causal=causal, config=config, path=path)
    arguments = scenario.arguments
    arguments["cu_seqlens_q"] = ints(*[0, 39] * 6, 0, 40, device=device)
    arguments["cu_seqlens_k"] = ints(*[0, 50] * 6, 0, 0, device=device)
    out, lse = launched(scenario, arguments)[0]
    assert not out.isnan().any(), "a row was not written"
    assert not lse.isnan().any(), "a log denominator was not written"


def rolled(device):
    """The cache that rolls takes its numbers from the host; what lies around buffer and chunk stays as it is."""
    guards = Guards()
    k, v = (guards.around(floats(2, 9, 2, dim, dtype=torch.float16, device=device)) for dim in (8, 24))
    key, value = (guards.around(floats(2, 3, 2, dim, dtype=torch.float16, device=device)) for dim in (8, 24))
    for shift, kept in ((3, 4), (1, 0), (2, 4)):
        shift_and_write_triton(k, v, first=2, shift=shift, kept=kept, key=key, value=value)
    shift_and_write_triton(k, v, first=8, shift=3, kept=5, backward=True)
    guards.assert_intact()
    assert k.isfinite().all()
    assert v.isfinite().all()


def portable():
    """Every scenario of the kernels that run anywhere, by name."""
    sparse, flash = SparseTile(16, 16, 4, 2), flash_plan.TileConfig(16, 16, 4, 2)
    i64 = torch.int64
    return {
        "sparse prefill": lambda device: sparse_prefill(device, config=sparse),
        "sparse prefill, wide indices": lambda device: sparse_prefill(device, index=i64, config=sparse),
        "sparse decode": lambda device: sparse_decode(device, index=i64, config=sparse),
        "sparse decode, split": lambda device: sparse_decode(device, splits=2, config=sparse),
        "sparse decode, fp8": lambda device: sparse_decode(device, dim=64, quantised=True, config=sparse),
        "replay": lambda device: kda(device, config=StreamedConfig(16, 1, 2)),
        "replay, narrow slots": lambda device: kda(device, index=torch.int32, config=StreamedConfig(16, 1, 2, 2)),
        "state": lambda device: kda(device, ring=0, config=StreamedConfig(16, 1, 2)),
        "pages": lambda device: paged(device, config=flash),
        "whole tiles of a page": lambda device: paged(device, page=16, columns=3, config=flash),
        "pages, packed new tokens": lambda device: paged(device, config=flash, packed_new=True),
        "rows": lambda device: cached_rows(device, config=flash),
        "rows, split": lambda device: cached_rows(device, splits=2, config=flash),
        "sequences": lambda device: varlen(device, config=flash),
        "packed": lambda device: packed(device, config=PackedTile(16, 16, 4, 2)),
        "packed, all keys": lambda device: packed(device, causal=False, config=PackedTile(16, 16, 4, 2)),
    }


def hopper():
    """Every scenario of the kernels for Hopper, by name."""
    half = torch.bfloat16
    return {
        "sparse prefill, few heads": lambda device: sparse_prefill(
            device, heads=16, dim=512, dtype=half, path="hopper"
        ),
        "sparse prefill": lambda device: sparse_prefill(
            device, heads=64, dim=512, dtype=half, path="hopper", index=torch.int64
        ),
        "sparse decode": lambda device: sparse_decode(device, heads=16, dim=512, dtype=half, splits=3, path="hopper"),
        "sparse prefill, 128 columns": lambda device: sparse_prefill(
            device, heads=64, dim=128, dtype=half, path="hopper"
        ),
        "sparse decode, 256 columns": lambda device: sparse_decode(
            device, heads=16, dim=256, dtype=half, splits=2, path="hopper", index=torch.int64
        ),
        "replay": lambda device: kda(device, key_dim=64, value_dim=64, config=StagedConfig(64, 1, 4)),
        "state": lambda device: kda(device, ring=0, key_dim=128, value_dim=128, config=StagedConfig(64, 2, 4)),
        "pages": lambda device: paged(device, page=16, dims=(64, 64), dtype=half, path="hopper"),
        "pages, packed new tokens": lambda device: paged(
            device, page=64, columns=3, dims=(64, 64), dtype=half, path="hopper", packed_new=True
        ),
        "rows": lambda device: cached_rows(device, dims=(64, 64), dtype=half, path="hopper", splits=2),
        "wide values": lambda device: cached_rows(device, dims=(64, 512), dtype=half, path="hopper"),
        "wide values, many heads": lambda device: cached_rows(
            device, heads=8, dims=(64, 512), dtype=half, path="hopper"
        ),
        "packed": lambda device: packed(device, dims=(64, 64), dtype=half, path="hopper"),
        "packed, all keys": lambda device: packed(device, dims=(128, 64), dtype=half, path="hopper", causal=False),
    }


def hopper_runs():
    """Whether this device and this Triton run the kernels for Hopper."""
    return torch.cuda.is_available() and runs_on_hopper("tensorpact_kernels.packed_attention.device_hopper", 0)
