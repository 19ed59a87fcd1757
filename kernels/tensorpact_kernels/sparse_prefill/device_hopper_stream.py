"""Gluon kernel for Hopper in which some warps only copy rows: short sparse decodes of few heads."""

# Gluon has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from tensorpact_kernels.sparse_prefill.device_hopper import (
    LOWEST,
    barrier,
    gather_rows,
    load_indices,
    share_of,
    span,
    tiles_of,
    with_sink,
)

COUNTS = ["num_pool_rows", "num_indices", "num_splits", "num_items"]
LISTS = ["indices_ptr", "indptr_ptr", "sink_ptr", "lse_ptr"]


@no_type_check
@gluon.jit
def _turns(num_items):
    """Return how many items this program has; never less than one."""
    return (num_items - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)


@no_type_check
@gluon.jit
def _item(
    item, lists, num_splits, HEADS: gl.constexpr, BLOCK_H: gl.constexpr, BLOCK_K: gl.constexpr, SPLIT: gl.constexpr
):
    """Return an item's token, split and first head, its list, and its first and last-but-one tile."""
    indices_ptr, indices_stride, num_indices, indptr_ptr, indptr_stride, num_rows = lists
    head_blocks: gl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    part = item // head_blocks
    token = (part // num_splits).to(gl.int64)
    split = part % num_splits
    begin, end = span(indptr_ptr, indptr_stride, token, num_indices)
    first, last = share_of(split, num_splits, tiles_of(begin, end, BLOCK_K), SPLIT)
    rows = (indices_ptr, indices_stride, begin, end, num_rows)
    return token, split, (item % head_blocks) * BLOCK_H, rows, first, last


@no_type_check
@gluon.jit
def _copy(
    tiles,
    queries,
    barriers,
    work,
    lists,
    q,
    pool,
    HEADS: gl.constexpr,
    SPLIT: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Copy the queries and the rows of this program's items, as far ahead as there are free buffers."""
    BUFFERS: gl.constexpr = tiles.shape[0]
    BLOCK_K: gl.constexpr = tiles.shape[1]
    BLOCK_H: gl.constexpr = queries.shape[1]
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    KEY: gl.constexpr = gl.SliceLayout(1, COPY)
    filled, freed, q_freed = barriers
    num_items, num_splits = work
    q_ptr, q_stride_token, q_stride_head = q
    pool_ptr, pool_stride = pool
    keys = gl.arange(0, BLOCK_K, layout=KEY)
    dims = gl.arange(0, queries.shape[2], layout=gl.SliceLayout(0, COPY))
    count = 0
    for turn in range(_turns(num_items)):
        item = gl.program_id(0) + turn * gl.num_programs(0)
        token, _, first_head, rows, first, last = _item(item, lists, num_splits, HEADS, BLOCK_H, BLOCK_K, SPLIT)
        index = load_indices(rows, first, keys, BLOCK_K)
        mbarrier.wait(q_freed.index(turn % 2), (turn // 2 + 1) & 1)
        if first < last:
            heads = first_head + gl.arange(0, BLOCK_H, layout=KEY)
            q_rows = q_ptr + token * q_stride_token + heads.to(gl.int64) * q_stride_head
            q_pointers = gl.expand_dims(q_rows, 1) + gl.expand_dims(dims, 0)
            mask = gl.expand_dims(heads < HEADS, 1)
            async_copy.async_copy_global_to_shared(queries.index(turn % 2), q_pointers, mask=mask)
        for step in range(first, last):
            buffer = count % BUFFERS
            mbarrier.wait(freed.index(buffer), (count // BUFFERS + 1) & 1)
            gather_rows(tiles.index(buffer), pool_ptr, pool_stride, index, COPY)
            async_copy.mbarrier_arrive(filled.index(buffer), increment_count=False)
            index = load_indices(rows, step + 1, keys, BLOCK_K)
            count += 1
    async_copy.wait_group(0)


@no_type_check
@gluon.jit
def _partial_offsets(token, heads, split, num_splits, dims, HEADS: gl.constexpr, BLOCK_D: gl.constexpr):
    place = (token * HEADS + heads) * num_splits + split
    return place, gl.expand_dims(place * BLOCK_D, 0) + gl.expand_dims(dims, 1)


@no_type_check
@gluon.jit
def _store_partial(result, split, num_splits, partial, HEADS: gl.constexpr):
    token, _, heads, values, row_max, row_sum = result
    partial_acc_ptr, partial_max_ptr, partial_sum_ptr = partial
    dims = gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, values.type.layout))
    place, offsets = _partial_offsets(token, heads, split, num_splits, dims, HEADS, values.shape[0])
    gl.store(partial_max_ptr + place, row_max, mask=heads < HEADS)
    gl.store(partial_sum_ptr + place, row_sum, mask=heads < HEADS)
    gl.store(partial_acc_ptr + offsets, values, mask=gl.expand_dims(heads < HEADS, 0))


@no_type_check
@gluon.jit
def _merge(result, split, num_splits, partial, HEADS: gl.constexpr):
    """Add what the other splits of this token and block of heads stored."""
    token, first_head, heads, values, row_max, row_sum = result
    partial_acc_ptr, partial_max_ptr, partial_sum_ptr = partial
    dims = gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, values.type.layout))
    for turn in range(1, num_splits):
        other = (split + turn) % num_splits
        place, offsets = _partial_offsets(token, heads, other, num_splits, dims, HEADS, values.shape[0])
        mask = heads < HEADS
        acc = gl.load(partial_acc_ptr + offsets, mask=gl.expand_dims(mask, 0), other=0.0, cache_modifier=".cg")
        other_max = gl.load(partial_max_ptr + place, mask=mask, other=LOWEST, cache_modifier=".cg")
        other_sum = gl.load(partial_sum_ptr + place, mask=mask, other=0.0, cache_modifier=".cg")
        new_max = gl.maximum(row_max, other_max)
        own, others = gl.exp2(row_max - new_max), gl.exp2(other_max - new_max)
        values = values * gl.expand_dims(own, 0) + acc * gl.expand_dims(others, 0)
        row_sum = row_sum * own + other_sum * others
        row_max = new_max
    return token, first_head, heads, values, row_max, row_sum


@no_type_check
@gluon.jit
def _store(result, staging, sink_ptr, sink_stride, out, lse_ptr, HEADS: gl.constexpr, COPY: gl.constexpr):
    """Normalise and store, through shared memory, so that the rows leave in 16-byte pieces."""
    token, first_head, heads, values, row_max, row_sum = result
    out_ptr, out_stride_token, out_stride_head = out
    sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
    factor, lse = with_sink(row_max, row_sum, sink)
    if lse_ptr is not None:
        gl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
    staging.permute((1, 0)).store((values * gl.expand_dims(factor, 0)).to(staging.dtype))
    barrier()
    copy_heads = first_head + gl.arange(0, staging.shape[0], layout=gl.SliceLayout(1, COPY))
    dims = gl.arange(0, staging.shape[1], layout=gl.SliceLayout(0, COPY))
    rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
    pointers = gl.expand_dims(rows, 1) + gl.expand_dims(dims, 0)
    gl.store(pointers, staging.load(COPY), mask=gl.expand_dims(copy_heads < HEADS, 1))


@no_type_check
@gluon.jit
def _attend(
    tiles,
    queries,
    weights_tile,
    barriers,
    work,
    lists,
    scale_log2,
    sink_ptr,
    sink_stride,
    out,
    lse_ptr,
    partial,
    counters_ptr,
    HEADS: gl.constexpr,
    SPLIT: gl.constexpr,
    MERGE: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Attend to the rows that the copying warps bring; keys are on the 64 rows of the matrix instruction."""
    BUFFERS: gl.constexpr = tiles.shape[0]
    BLOCK_K: gl.constexpr = tiles.shape[1]
    BLOCK_H: gl.constexpr = queries.shape[1]
    BLOCK_D: gl.constexpr = queries.shape[2]
    dtype: gl.constexpr = queries.dtype
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_H, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, SCORES)
    filled, freed, q_freed = barriers
    num_items, num_splits = work
    keys = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(1, SCORES))
    empty_scores = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    count = 0
    for turn in range(_turns(num_items)):
        item = gl.program_id(0) + turn * gl.num_programs(0)
        token, split, first_head, rows, first, last = _item(item, lists, num_splits, HEADS, BLOCK_H, BLOCK_K, SPLIT)
        q_tile = queries.index(turn % 2)
        key = load_indices(rows, first, keys, BLOCK_K)
        row_max = gl.full([BLOCK_H], LOWEST, gl.float32, HEAD)
        sums = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
        values = gl.full([BLOCK_D, BLOCK_H], 0.0, gl.float32, SCORES)
        for step in range(first, last):
            buffer = count % BUFFERS
            tile = tiles.index(buffer)
            mbarrier.wait(filled.index(buffer), (count // BUFFERS) & 1)
            fence_async_shared()
            barrier()
            pending = warpgroup_mma(tile, q_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
            valid = key >= 0
            key = load_indices(rows, step + 1, keys, BLOCK_K)
            scores = warpgroup_mma_wait(0, deps=(pending,))
            scores = gl.where(gl.expand_dims(valid, 1), scores, float("-inf"))
            new_max = gl.maximum(row_max, gl.max(scores, axis=0) * scale_log2)
            correction = gl.exp2(row_max - new_max)
            weights = gl.exp2(scores * scale_log2 - gl.expand_dims(new_max, 0))
            sums = sums * gl.expand_dims(correction, 0) + weights
            row_max = new_max
            weights_tile.store(weights.to(dtype))
            fence_async_shared()
            barrier()
            values = values * gl.expand_dims(correction, 0)
            pending = warpgroup_mma(tile.permute((1, 0)), weights_tile, values, is_async=True)
            values = warpgroup_mma_wait(0, deps=(pending,))
            # No warp reads the tile any more.
            barrier()
            mbarrier.arrive(freed.index(buffer), count=1)
            count += 1

        row_sum = gl.sum(sums, axis=0)
        heads = first_head + gl.arange(0, BLOCK_H, layout=HEAD)
        result = (token, first_head, heads, values, row_max, row_sum)
        if SPLIT:
            _store_partial(result, split, num_splits, partial, HEADS)
            if MERGE:
                barrier()
                counter = counters_ptr + token * HEADS + first_head
                if gl.atomic_add(counter, 1) == num_splits - 1:
                    result = _merge(result, split, num_splits, partial, HEADS)
                    _store(result, q_tile, sink_ptr, sink_stride, out, lse_ptr, HEADS, COPY)
                    gl.store(counter, 0)
        else:
            _store(result, q_tile, sink_ptr, sink_stride, out, lse_ptr, HEADS, COPY)
        barrier()
        mbarrier.arrive(q_freed.index(turn % 2), count=1)


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def sparse_stream_kernel(
    q_ptr,
    pool_ptr,
    indices_ptr,
    indptr_ptr,
    sink_ptr,
    out_ptr,
    lse_ptr,
    partial_acc_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    counters_ptr,
    scale_log2,
    num_pool_rows,
    num_indices,
    num_splits,
    num_items,
    q_stride_token,
    q_stride_head,
    pool_stride_row,
    out_stride_token,
    out_stride_head,
    indices_stride,
    indptr_stride,
    sink_stride,
    HEADS: gl.constexpr,
    BLOCK_H: gl.constexpr,
    BLOCK_D: gl.constexpr,
    BLOCK_K: gl.constexpr,
    BUFFERS: gl.constexpr,
    SPLIT: gl.constexpr,
    MERGE: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Walk over items (token, split, block of heads): one warpgroup copies rows, the other attends to them."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    NARROW: gl.constexpr = gl.NVMMASharedLayout(2 * BLOCK_H, 16, 2)
    queries = gl.allocate_shared_memory(dtype, [2, BLOCK_H, BLOCK_D], WIDE)
    tiles = gl.allocate_shared_memory(dtype, [BUFFERS, BLOCK_K, BLOCK_D], WIDE)
    weights_tile = gl.allocate_shared_memory(dtype, [BLOCK_K, BLOCK_H], NARROW)
    filled = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    freed = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    q_freed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for buffer in gl.static_range(BUFFERS):
        # Every copying thread arrives by itself, once its own copies are there.
        mbarrier.init(filled.index(buffer), count=32 * num_warps)
        mbarrier.init(freed.index(buffer), count=1)
    for buffer in gl.static_range(2):
        mbarrier.init(q_freed.index(buffer), count=1)
    gdc_wait()
    barriers = (filled, freed, q_freed)
    work = (num_items, num_splits)
    lists = (indices_ptr, indices_stride, num_indices, indptr_ptr, indptr_stride, num_pool_rows)
    q = (q_ptr, q_stride_token, q_stride_head)
    out = (out_ptr, out_stride_token, out_stride_head)
    partial = (partial_acc_ptr, partial_max_ptr, partial_sum_ptr)
    pool = (pool_ptr, pool_stride_row)
    gl.warp_specialize(
        [
            (
                _attend,
                (
                    tiles,
                    queries,
                    weights_tile,
                    barriers,
                    work,
                    lists,
                    scale_log2,
                    sink_ptr,
                    sink_stride,
                    out,
                    lse_ptr,
                    partial,
                    counters_ptr,
                    HEADS,
                    SPLIT,
                    MERGE,
                    num_warps,
                ),
            ),
            (_copy, (tiles, queries, barriers, work, lists, q, pool, HEADS, SPLIT, num_warps)),
        ],
        [num_warps],
        [80],
    )
