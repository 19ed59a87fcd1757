"""Gluon kernels for Hopper's warpgroup matrix instructions, for heads in blocks of 64: sparse prefill and decode."""

# Gluon has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from tensorpact_kernels._gluon import barrier, copy_to_shared
from tensorpact_kernels.sparse_prefill.device_hopper_report import load_lists, report_lists, share_of

LOWEST = gl.constexpr(-3.4028234663852886e38)
LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)

COUNTS = ["num_pool_rows", "num_kv_rows", "num_prefix_indices", "num_extend_indices", "num_splits", "flag_call"]
LISTS = ["prefix_indices_ptr", "prefix_indptr_ptr", "extend_indices_ptr", "extend_indptr_ptr", "sink_ptr", "lse_ptr"]


@no_type_check
@gluon.jit
def _tile_of_list(source, step, BLOCK_K: gl.constexpr):
    """Return where a tile of a list begins in memory, the stride, and how many indices it has."""
    indices_ptr, stride, begin, end, _ = source
    first = begin + step.to(gl.int64) * BLOCK_K
    return indices_ptr + first * stride, stride, gl.minimum(end - first, BLOCK_K).to(gl.int32)


@no_type_check
@gluon.jit
def _load_indices(tile, keys):
    tile_ptr, stride, count = tile
    return gl.load(tile_ptr + keys.to(gl.int64) * stride, mask=keys < count, other=-1)


@no_type_check
@gluon.jit
def _select(condition, first, second):
    """Return one of two tiles of lists of one type, without a branch."""
    return (
        gl.where(condition, first[0], second[0]),
        gl.where(condition, first[1], second[1]),
        gl.where(condition, first[2], second[2]),
    )


@no_type_check
@gluon.jit
def indices_of(step, lists, BLOCK_K: gl.constexpr, LAYOUT: gl.constexpr, EXTEND: gl.constexpr):
    """Return the row indices of one tile as they are, -1 behind its list.

    Nothing is done with them here, so that nothing waits for them before they are used, a step later.

    Args:
        step: Which tile.
        lists: Tiles of the first list, which the second's come behind; the list of rows in the pool; that of new rows.
        BLOCK_K: Keys of a tile.
        LAYOUT: Layout of the keys.
        EXTEND: Whether there is the second list.
    """
    prefix_tiles, prefix, extend = lists
    keys = gl.arange(0, BLOCK_K, layout=LAYOUT)
    if EXTEND and prefix[0].dtype != extend[0].dtype:
        if step < prefix_tiles:
            index = _load_indices(_tile_of_list(prefix, step, BLOCK_K), keys).to(gl.int64)
        else:
            index = _load_indices(_tile_of_list(extend, step - prefix_tiles, BLOCK_K), keys).to(gl.int64)
    else:
        tile = _tile_of_list(prefix, step, BLOCK_K)
        if EXTEND:
            tile = _select(step < prefix_tiles, tile, _tile_of_list(extend, step - prefix_tiles, BLOCK_K))
        index = _load_indices(tile, keys)
    return index


@no_type_check
@gluon.jit
def is_past(index, step, lists, EXTEND: gl.constexpr):
    """Return which indices of a tile are past the rows of its list."""
    prefix_tiles, prefix, extend = lists
    num_rows = prefix[4]
    if EXTEND:
        num_rows = gl.where(step < prefix_tiles, num_rows, extend[4])
    return index >= num_rows


@no_type_check
@gluon.jit
def worst_of(index, step, lists, EXTEND: gl.constexpr):
    """Return what the worst of a tile's indices is: 0 a row, 1 below zero, 2 past the rows."""
    return gl.max(gl.where(is_past(index, step, lists, EXTEND), 2, (index < 0).to(gl.int32)), axis=0)


@no_type_check
@gluon.jit
def gather(tile, step, last, lists, pool, kv, index, EXTEND: gl.constexpr, LAYOUT: gl.constexpr):
    """Start copying one tile of rows into shared memory, as one group; skipped rows are zero-filled."""
    rows_ptr, stride = pool
    if EXTEND:
        rows_ptr = gl.where(step < lists[0], rows_ptr, kv[0])
        stride = gl.where(step < lists[0], stride, kv[1])
    row = gl.where(is_past(index, step, lists, EXTEND), -1, index).to(gl.int64)
    if step < last:
        dims = gl.arange(0, tile.shape[1], layout=gl.SliceLayout(0, LAYOUT))
        pointers = gl.expand_dims(rows_ptr + row * stride, 1) + gl.expand_dims(dims, 0)
        copy_to_shared(tile, pointers, mask=gl.expand_dims(row >= 0, 1))
    async_copy.commit_group()


@no_type_check
@gluon.jit
def with_sink(row_max, row_sum, sink):
    """Return the factor that normalises the accumulator and the log of the denominator, sink included."""
    sink_log2 = sink.to(gl.float32) * LOG2_E
    new_max = gl.maximum(row_max, sink_log2)
    correction = gl.exp2(row_max - new_max)
    denominator = row_sum * correction + gl.exp2(sink_log2 - new_max)
    # Only an exact zero means "no key and no sink"; a NaN must stay visible.
    empty = denominator == 0.0
    denominator = gl.where(empty, 1.0, denominator)
    lse = gl.where(empty, float("-inf"), new_max * LN_2 + gl.log(denominator))
    return gl.where(empty, 0.0, correction / denominator), lse


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def sparse_wide_kernel(
    q_ptr,
    pool_ptr,
    prefix_indices_ptr,
    prefix_indptr_ptr,
    kv_ptr,
    extend_indices_ptr,
    extend_indptr_ptr,
    sink_ptr,
    out_ptr,
    lse_ptr,
    partial_acc_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    flag_memory,
    flag_counters,
    flag_call,
    scale_log2,
    num_pool_rows,
    num_kv_rows,
    num_prefix_indices,
    num_extend_indices,
    num_splits,
    q_stride_token,
    q_stride_head,
    pool_stride_row,
    kv_stride_row,
    out_stride_token,
    out_stride_head,
    prefix_indices_stride,
    prefix_indptr_stride,
    extend_indices_stride,
    extend_indptr_stride,
    sink_stride,
    HEADS: gl.constexpr,
    BLOCK_H: gl.constexpr,
    BLOCK_D: gl.constexpr,
    BLOCK_K: gl.constexpr,
    EXTEND: gl.constexpr,
    SPLIT: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Give a block of heads to one warpgroup, or to two: each scores half of the keys and owns half of the columns."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    GROUPS: gl.constexpr = num_warps // 4
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, BLOCK_K // GROUPS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, BLOCK_D // GROUPS, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    COPY_KEY: gl.constexpr = gl.SliceLayout(1, COPY)
    SCORE_KEY: gl.constexpr = gl.SliceLayout(0, SCORES)
    # Every warp has all keys of a tile, so that all find the same in it without asking one another.
    LOOK: gl.constexpr = gl.BlockedLayout([BLOCK_K // 32], [32], [num_warps], [0])
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)

    head_blocks: gl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    # Head blocks of one token are neighbours in launch order, so that all but the first find the rows in L2.
    part = gl.program_id(0) // head_blocks
    token = (part // num_splits).to(gl.int64)
    split = part % num_splits
    first_head = (gl.program_id(0) % head_blocks) * BLOCK_H
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_D], WIDE)
    kv_tiles = gl.allocate_shared_memory(dtype, [2, BLOCK_K, BLOCK_D], WIDE)
    if GROUPS > 1:
        weights_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_K], WIDE)

    copy_heads = first_head + gl.arange(0, BLOCK_H, layout=COPY_KEY)
    copy_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, COPY))
    q_rows = q_ptr + token * q_stride_token + copy_heads.to(gl.int64) * q_stride_head
    q_pointers = gl.expand_dims(q_rows, 1) + gl.expand_dims(copy_dims, 0)
    copy_to_shared(q_tile, q_pointers, mask=gl.expand_dims(copy_heads < HEADS, 1))

    prefix = (
        prefix_indptr_ptr, prefix_indptr_stride, prefix_indices_ptr, prefix_indices_stride, num_prefix_indices,
        num_pool_rows,
    )  # fmt: skip
    extend = (
        extend_indptr_ptr, extend_indptr_stride, extend_indices_ptr, extend_indices_stride, num_extend_indices,
        num_kv_rows,
    )  # fmt: skip
    lists, tiles, wrong_span = load_lists(prefix, extend, token, EXTEND, BLOCK_K)
    pool = (pool_ptr, pool_stride_row)
    kv = (kv_ptr, kv_stride_row)
    if SPLIT:
        # The combine kernel may take its places on the device now; it waits for this one's stores.
        gdc_launch_dependents()
    first, last = share_of(split, num_splits, tiles, SPLIT)

    index = indices_of(first, lists, BLOCK_K, COPY_KEY, EXTEND)
    gather(kv_tiles.index(0), first, last, lists, pool, kv, index, EXTEND, COPY)
    index = indices_of(first + 1, lists, BLOCK_K, COPY_KEY, EXTEND)
    key = indices_of(first, lists, BLOCK_K, LOOK, EXTEND)
    if flag_memory is not None:
        # The other splits have the same offsets.
        worst = gl.where(wrong_span & (split == 0), 2, 0)

    row_max = gl.full([BLOCK_H], LOWEST, gl.float32, ROW)
    if GROUPS > 1:
        sums = gl.full([BLOCK_H, BLOCK_K], 0.0, gl.float32, SCORES)
    else:
        sums = gl.full([BLOCK_H], 0.0, gl.float32, ROW)
    empty_scores = gl.full([BLOCK_H, BLOCK_K], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_H, BLOCK_D], 0.0, gl.float32, OUTPUT)
    for step in range(first, last):
        tile = kv_tiles.index((step - first) % 2)
        async_copy.wait_group(0)
        fence_async_shared()
        # From here on every warp sees this tile, and no warp reads the other one any more.
        barrier()
        pending = warpgroup_mma(q_tile, tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
        upcoming = kv_tiles.index((step - first + 1) % 2)
        gather(upcoming, step + 1, last, lists, pool, kv, index, EXTEND, COPY)
        index = indices_of(step + 2, lists, BLOCK_K, COPY_KEY, EXTEND)
        found = worst_of(key, step, lists, EXTEND)
        key = indices_of(step + 1, lists, BLOCK_K, LOOK, EXTEND)
        scores = warpgroup_mma_wait(0, deps=(pending,))
        # Most tiles have a row for every key, and need no mask.
        if found > 0:
            if flag_memory is not None:
                worst = gl.maximum(worst, found)
            own = indices_of(step, lists, BLOCK_K, SCORE_KEY, EXTEND)
            valid = (own >= 0) & ~is_past(own, step, lists, EXTEND)
            scores = gl.where(gl.expand_dims(valid, 0), scores, float("-inf"))
        new_max = gl.maximum(row_max, gl.max(scores, axis=1) * scale_log2)
        correction = gl.exp2(row_max - new_max)
        weights = gl.exp2(scores * scale_log2 - gl.expand_dims(new_max, 1))
        row_max = new_max
        if GROUPS > 1:
            sums = sums * gl.expand_dims(correction, 1) + weights
            weights_tile.store(weights.to(dtype))
            fence_async_shared()
            barrier()
        else:
            sums = sums * correction + gl.sum(weights, axis=1)
        values = values * gl.expand_dims(gl.convert_layout(correction, gl.SliceLayout(1, OUTPUT)), 1)
        if GROUPS > 1:
            pending = warpgroup_mma(weights_tile, tile, values, is_async=True)
        else:
            own_weights = gl.convert_layout(weights.to(dtype), gl.DotOperandLayout(0, OUTPUT, 2))
            pending = warpgroup_mma(own_weights, tile, values, is_async=True)
        values = warpgroup_mma_wait(0, deps=(pending,))
    async_copy.wait_group(0)

    row_sum = sums
    if GROUPS > 1:
        row_sum = gl.sum(sums, axis=1)
    heads = first_head + gl.arange(0, BLOCK_H, layout=ROW)
    if SPLIT:
        partial = (token * HEADS + heads) * num_splits + split
        gl.store(partial_max_ptr + partial, row_max, mask=heads < HEADS)
        gl.store(partial_sum_ptr + partial, row_sum, mask=heads < HEADS)
        out_heads = first_head + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, OUTPUT))
        out_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, OUTPUT))
        out_rows = partial_acc_ptr + ((token * HEADS + out_heads) * num_splits + split) * BLOCK_D
        out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(out_dims, 0)
        gl.store(out_pointers, values, mask=gl.expand_dims(out_heads < HEADS, 1))
    else:
        sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
        factor, lse = with_sink(row_max, row_sum, sink)
        if lse_ptr is not None:
            gl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
        values = values * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, OUTPUT)), 1)
        # Through shared memory, so that the rows leave in 16-byte pieces; the query tile is no longer needed.
        q_tile.store(values.to(dtype))
        barrier()
        out_rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
        out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(copy_dims, 0)
        gl.store(out_pointers, q_tile.load(COPY), mask=gl.expand_dims(copy_heads < HEADS, 1))
    if flag_memory is not None:
        # The other head blocks have the same lists.
        if (first_head == 0) & (worst > 1):
            # What was in shared memory is done with when it is written for this.
            barrier()
            report_lists(
                flag_memory, flag_counters, flag_call, token, split, num_splits, prefix, extend, EXTEND, SPLIT, BLOCK_K,
                num_warps,
            )  # fmt: skip
