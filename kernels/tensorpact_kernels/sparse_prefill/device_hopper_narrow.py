"""Gluon kernel for Hopper's warpgroup matrix instructions, for few heads: sparse prefill and decode."""

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
from tensorpact_kernels.sparse_prefill.device_hopper import (
    COUNTS,
    LISTS,
    LOWEST,
    gather,
    indices_of,
    is_past,
    with_sink,
)
from tensorpact_kernels.sparse_prefill.device_hopper_report import load_lists, report_lists, share_of


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def sparse_narrow_kernel(
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
    """Put keys, not heads, on the 64 rows of the matrix instruction, so that few heads waste none of them."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_H, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, SCORES)
    COPY_KEY: gl.constexpr = gl.SliceLayout(1, COPY)
    SCORE_KEY: gl.constexpr = gl.SliceLayout(1, SCORES)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    NARROW: gl.constexpr = gl.NVMMASharedLayout(2 * BLOCK_H, 16, 2)

    head_blocks: gl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    part = gl.program_id(0) // head_blocks
    token = (part // num_splits).to(gl.int64)
    split = part % num_splits
    first_head = (gl.program_id(0) % head_blocks) * BLOCK_H
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_D], WIDE)
    tile = gl.allocate_shared_memory(dtype, [BLOCK_K, BLOCK_D], WIDE)
    weights_tile = gl.allocate_shared_memory(dtype, [BLOCK_K, BLOCK_H], NARROW)

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

    copy_heads = first_head + gl.arange(0, BLOCK_H, layout=COPY_KEY)
    copy_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, COPY))
    q_rows = q_ptr + token * q_stride_token + copy_heads.to(gl.int64) * q_stride_head
    q_pointers = gl.expand_dims(q_rows, 1) + gl.expand_dims(copy_dims, 0)
    copy_to_shared(q_tile, q_pointers, mask=gl.expand_dims(copy_heads < HEADS, 1))
    index = indices_of(first, lists, BLOCK_K, COPY_KEY, EXTEND)
    gather(tile, first, last, lists, pool, kv, index, EXTEND, COPY)
    index = indices_of(first + 1, lists, BLOCK_K, COPY_KEY, EXTEND)
    key = indices_of(first, lists, BLOCK_K, SCORE_KEY, EXTEND)
    if flag_memory is not None:
        # The other splits have the same offsets.
        past = gl.full([BLOCK_K], 0, gl.int32, SCORE_KEY) + (wrong_span & (split == 0)).to(gl.int32)

    row_max = gl.full([BLOCK_H], LOWEST, gl.float32, HEAD)
    sums = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    empty_scores = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_D, BLOCK_H], 0.0, gl.float32, SCORES)
    # One tile in shared memory, so that two programs share a multiprocessor: one copies while the other multiplies.
    for step in range(first, last):
        async_copy.wait_group(0)
        fence_async_shared()
        barrier()
        pending = warpgroup_mma(tile, q_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
        beyond = is_past(key, step, lists, EXTEND)
        valid = (key >= 0) & ~beyond
        if flag_memory is not None:
            past = past | beyond.to(gl.int32)
        key = indices_of(step + 1, lists, BLOCK_K, SCORE_KEY, EXTEND)
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
        gather(tile, step + 1, last, lists, pool, kv, index, EXTEND, COPY)
        index = indices_of(step + 2, lists, BLOCK_K, COPY_KEY, EXTEND)
    async_copy.wait_group(0)

    row_sum = gl.sum(sums, axis=0)
    heads = first_head + gl.arange(0, BLOCK_H, layout=HEAD)
    if SPLIT:
        partial = (token * HEADS + heads) * num_splits + split
        gl.store(partial_max_ptr + partial, row_max, mask=heads < HEADS)
        gl.store(partial_sum_ptr + partial, row_sum, mask=heads < HEADS)
        ROWS: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [num_warps, 1], [1, 0])
        out_heads = first_head + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, ROWS))
        out_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, ROWS))
        out_rows = partial_acc_ptr + ((token * HEADS + out_heads) * num_splits + split) * BLOCK_D
        out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(out_dims, 0)
        acc = gl.convert_layout(gl.permute(values, (1, 0)), ROWS)
        gl.store(out_pointers, acc, mask=gl.expand_dims(out_heads < HEADS, 1))
    else:
        sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
        factor, lse = with_sink(row_max, row_sum, sink)
        if lse_ptr is not None:
            gl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
        values = (values * gl.expand_dims(factor, 0)).to(dtype)
        out_rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
        out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(copy_dims, 0)
        rounded = gl.convert_layout(gl.permute(values, (1, 0)), COPY)
        gl.store(out_pointers, rounded, mask=gl.expand_dims(copy_heads < HEADS, 1))
    if flag_memory is not None:
        # What was in shared memory is done with when it is written for this. The other head blocks have the same lists.
        barrier()
        if (first_head == 0) & (gl.max(past, axis=0) > 0):
            report_lists(
                flag_memory, flag_counters, flag_call, token, split, num_splits, prefix, extend, EXTEND, SPLIT, BLOCK_K,
                num_warps,
            )  # fmt: skip
