"""Other designs of sparse prefill, timed beside the packaged kernel; each masks and skips as that one does."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import no_type_check

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tensorpact_kernels.sparse_prefill import device
from tensorpact_kernels.sparse_prefill.launch import LOG2_E, padded

# Named thread_barrier in triton 3.6, barrier from 3.7 on.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
LOWEST = gl.constexpr(-3.4028234663852886e38)
LN_2 = gl.constexpr(0.6931471805599453)


@no_type_check
@gluon.jit
def _load_indices(source, step, keys, BLOCK_K: gl.constexpr):
    indices_ptr, stride, begin, end, num_rows = source
    position = begin + step * BLOCK_K + keys
    index = gl.load(indices_ptr + position * stride, mask=position < end, other=-1)
    return gl.where(index < num_rows, index, -1).to(gl.int64)


@no_type_check
@gluon.jit
def _indices_of(step, prefix_tiles, prefix, extend, BLOCK_K: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the row indices of one tile, -1 for every key that does not count."""
    keys = gl.arange(0, BLOCK_K, layout=LAYOUT)
    if step < prefix_tiles:
        index = _load_indices(prefix, step, keys, BLOCK_K)
    else:
        index = _load_indices(extend, step - prefix_tiles, keys, BLOCK_K)
    return index


@no_type_check
@gluon.jit
def _gather_rows(tile, rows_ptr, stride, index, LAYOUT: gl.constexpr):
    """Start copying one tile of rows into shared memory; skipped rows are zero-filled."""
    dims = gl.arange(0, tile.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    pointers = gl.expand_dims(rows_ptr + index * stride, 1) + gl.expand_dims(dims, 0)
    async_copy.async_copy_global_to_shared(tile, pointers, mask=gl.expand_dims(index >= 0, 1))


@no_type_check
@gluon.jit
def _with_sink(row_max, row_sum, sink):
    """Return the factor that normalises the accumulator and the log of the denominator, sink included."""
    sink_log2 = sink.to(gl.float32) * 1.4426950408889634
    new_max = gl.maximum(row_max, sink_log2)
    correction = gl.exp2(row_max - new_max)
    denominator = row_sum * correction + gl.exp2(sink_log2 - new_max)
    empty = denominator == 0.0
    denominator = gl.where(empty, 1.0, denominator)
    lse = gl.where(empty, float("-inf"), new_max * LN_2 + gl.log(denominator))
    return gl.where(empty, 0.0, correction / denominator), lse


@no_type_check
@gluon.jit
def _span(indptr_ptr, indptr_stride, token, num_indices):
    begin = gl.load(indptr_ptr + token * indptr_stride).to(gl.int64)
    end = gl.load(indptr_ptr + (token + 1) * indptr_stride).to(gl.int64)
    begin = gl.minimum(gl.maximum(begin, 0), num_indices)
    return begin, gl.maximum(begin, gl.minimum(end, num_indices))


@no_type_check
@gluon.jit(do_not_specialize=device.COUNTS, do_not_specialize_on_alignment=device.LISTS)
def two_warpgroup_prefill_kernel(
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
    scale_log2,
    num_pool_rows,
    num_kv_rows,
    num_prefix_indices,
    num_extend_indices,
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
    num_warps: gl.constexpr,
):
    """Share 64 heads between two warpgroups: each scores half of the keys and owns half of the output columns."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    GROUPS: gl.constexpr = num_warps // 4
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, BLOCK_K // GROUPS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, BLOCK_D // GROUPS, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)

    head_blocks: gl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    token = (gl.program_id(0) // head_blocks).to(gl.int64)
    first_head = (gl.program_id(0) % head_blocks) * BLOCK_H
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_D], WIDE)
    kv_tiles = gl.allocate_shared_memory(dtype, [2, BLOCK_K, BLOCK_D], WIDE)
    weights_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_K], WIDE)

    copy_heads = first_head + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, COPY))
    copy_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, COPY))
    q_rows = q_ptr + token * q_stride_token + copy_heads.to(gl.int64) * q_stride_head
    q_pointers = gl.expand_dims(q_rows, 1) + gl.expand_dims(copy_dims, 0)
    async_copy.async_copy_global_to_shared(q_tile, q_pointers, mask=gl.expand_dims(copy_heads < HEADS, 1))

    prefix_begin, prefix_end = _span(prefix_indptr_ptr, prefix_indptr_stride, token, num_prefix_indices)
    extend_begin, extend_end = _span(extend_indptr_ptr, extend_indptr_stride, token, num_extend_indices)
    prefix = (prefix_indices_ptr, prefix_indices_stride, prefix_begin, prefix_end, num_pool_rows)
    extend = (extend_indices_ptr, extend_indices_stride, extend_begin, extend_end, num_kv_rows)
    prefix_tiles = ((prefix_end - prefix_begin + BLOCK_K - 1) // BLOCK_K).to(gl.int32)
    tiles = prefix_tiles + ((extend_end - extend_begin + BLOCK_K - 1) // BLOCK_K).to(gl.int32)

    index = _indices_of(0, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
    if prefix_tiles > 0:
        _gather_rows(kv_tiles.index(0), pool_ptr, pool_stride_row, index, COPY)
    else:
        _gather_rows(kv_tiles.index(0), kv_ptr, kv_stride_row, index, COPY)
    async_copy.commit_group()
    index = _indices_of(1, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))

    row_max = gl.full([BLOCK_H], LOWEST, gl.float32, ROW)
    sums = gl.full([BLOCK_H, BLOCK_K], 0.0, gl.float32, SCORES)
    empty_scores = gl.full([BLOCK_H, BLOCK_K], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_H, BLOCK_D], 0.0, gl.float32, OUTPUT)
    for step in range(tiles):
        tile = kv_tiles.index(step % 2)
        async_copy.wait_group(0)
        fence_async_shared()
        # From here on every warp sees this tile, and no warp reads the other one any more.
        barrier()
        pending = warpgroup_mma(q_tile, tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
        upcoming = step + 1
        if upcoming < prefix_tiles:
            _gather_rows(kv_tiles.index(upcoming % 2), pool_ptr, pool_stride_row, index, COPY)
        elif upcoming < tiles:
            _gather_rows(kv_tiles.index(upcoming % 2), kv_ptr, kv_stride_row, index, COPY)
        async_copy.commit_group()
        index = _indices_of(step + 2, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
        key = _indices_of(step, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(0, SCORES))
        scores = warpgroup_mma_wait(0, deps=(pending,))
        scores = gl.where(gl.expand_dims(key >= 0, 0), scores, float("-inf"))
        new_max = gl.maximum(row_max, gl.max(scores, axis=1) * scale_log2)
        correction = gl.exp2(row_max - new_max)
        weights = gl.exp2(scores * scale_log2 - gl.expand_dims(new_max, 1))
        sums = sums * gl.expand_dims(correction, 1) + weights
        row_max = new_max
        weights_tile.store(weights.to(dtype))
        fence_async_shared()
        barrier()
        values = values * gl.expand_dims(gl.convert_layout(correction, gl.SliceLayout(1, OUTPUT)), 1)
        pending = warpgroup_mma(weights_tile, tile, values, is_async=True)
        values = warpgroup_mma_wait(0, deps=(pending,))
    async_copy.wait_group(0)

    row_sum = gl.sum(sums, axis=1)
    heads = first_head + gl.arange(0, BLOCK_H, layout=ROW)
    sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
    factor, lse = _with_sink(row_max, row_sum, sink)
    if lse_ptr is not None:
        gl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
    values = values * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, OUTPUT)), 1)
    # Through shared memory, so that the rows leave in 16-byte pieces; the query tile is no longer needed.
    q_tile.store(values.to(dtype))
    barrier()
    rounded = q_tile.load(COPY)
    out_rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
    out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(copy_dims, 0)
    gl.store(out_pointers, rounded, mask=gl.expand_dims(copy_heads < HEADS, 1))


@no_type_check
@gluon.jit(do_not_specialize=device.COUNTS, do_not_specialize_on_alignment=device.LISTS)
def swapped_prefill_kernel(
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
    scale_log2,
    num_pool_rows,
    num_kv_rows,
    num_prefix_indices,
    num_extend_indices,
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
    BUFFERS: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Put keys, not heads, on the 64 rows of the matrix instruction, so that few heads waste none of them."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_H, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, SCORES)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    NARROW: gl.constexpr = gl.NVMMASharedLayout(2 * BLOCK_H, 16, 2)

    head_blocks: gl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    token = (gl.program_id(0) // head_blocks).to(gl.int64)
    first_head = (gl.program_id(0) % head_blocks) * BLOCK_H
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_D], WIDE)
    kv_tiles = gl.allocate_shared_memory(dtype, [BUFFERS, BLOCK_K, BLOCK_D], WIDE)
    weights_tile = gl.allocate_shared_memory(dtype, [BLOCK_K, BLOCK_H], NARROW)

    copy_heads = first_head + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, COPY))
    copy_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, COPY))
    q_rows = q_ptr + token * q_stride_token + copy_heads.to(gl.int64) * q_stride_head
    q_pointers = gl.expand_dims(q_rows, 1) + gl.expand_dims(copy_dims, 0)
    async_copy.async_copy_global_to_shared(q_tile, q_pointers, mask=gl.expand_dims(copy_heads < HEADS, 1))

    prefix_begin, prefix_end = _span(prefix_indptr_ptr, prefix_indptr_stride, token, num_prefix_indices)
    extend_begin, extend_end = _span(extend_indptr_ptr, extend_indptr_stride, token, num_extend_indices)
    prefix = (prefix_indices_ptr, prefix_indices_stride, prefix_begin, prefix_end, num_pool_rows)
    extend = (extend_indices_ptr, extend_indices_stride, extend_begin, extend_end, num_kv_rows)
    prefix_tiles = ((prefix_end - prefix_begin + BLOCK_K - 1) // BLOCK_K).to(gl.int32)
    tiles = prefix_tiles + ((extend_end - extend_begin + BLOCK_K - 1) // BLOCK_K).to(gl.int32)

    for step in gl.static_range(BUFFERS - 1):
        index = _indices_of(step, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
        if step < prefix_tiles:
            _gather_rows(kv_tiles.index(step), pool_ptr, pool_stride_row, index, COPY)
        elif step < tiles:
            _gather_rows(kv_tiles.index(step), kv_ptr, kv_stride_row, index, COPY)
        async_copy.commit_group()
    index = _indices_of(BUFFERS - 1, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))

    row_max = gl.full([BLOCK_H], LOWEST, gl.float32, HEAD)
    sums = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    empty_scores = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_D, BLOCK_H], 0.0, gl.float32, SCORES)
    for step in range(tiles):
        tile = kv_tiles.index(step % BUFFERS)
        async_copy.wait_group(BUFFERS - 2)
        fence_async_shared()
        # From here on every warp sees this tile, and no warp reads the one before any more.
        barrier()
        pending = warpgroup_mma(tile, q_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
        upcoming = step + BUFFERS - 1
        if upcoming < prefix_tiles:
            _gather_rows(kv_tiles.index(upcoming % BUFFERS), pool_ptr, pool_stride_row, index, COPY)
        elif upcoming < tiles:
            _gather_rows(kv_tiles.index(upcoming % BUFFERS), kv_ptr, kv_stride_row, index, COPY)
        async_copy.commit_group()
        index = _indices_of(upcoming + 1, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
        key = _indices_of(step, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, SCORES))
        scores = warpgroup_mma_wait(0, deps=(pending,))
        scores = gl.where(gl.expand_dims(key >= 0, 1), scores, float("-inf"))
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
    async_copy.wait_group(0)

    row_sum = gl.sum(sums, axis=0)
    heads = first_head + gl.arange(0, BLOCK_H, layout=HEAD)
    sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
    factor, lse = _with_sink(row_max, row_sum, sink)
    if lse_ptr is not None:
        gl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
    values = (values * gl.expand_dims(factor, 0)).to(dtype)
    rounded = gl.convert_layout(gl.permute(values, (1, 0)), COPY)
    out_rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
    out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(copy_dims, 0)
    gl.store(out_pointers, rounded, mask=gl.expand_dims(copy_heads < HEADS, 1))


def _launch(kernel, block_h, arguments, scale, return_lse, **constants):
    q, unified_kv, _, _, kv, _, _, _ = arguments
    tokens, heads, dim = q.shape
    out = torch.empty_like(q)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device) if return_lse else None
    lists = [arguments[position] for position in (2, 3, 5, 6, 7)]
    kernel[(tokens * math.ceil(heads / block_h),)](
        *arguments,
        out,
        lse,
        float(scale) * LOG2_E,
        unified_kv.shape[0],
        kv.shape[0],
        lists[0].shape[0],
        lists[2].shape[0],
        *q.stride()[:2],
        unified_kv.stride(0),
        kv.stride(0),
        *out.stride()[:2],
        *(a.stride(0) for a in lists),
        HEADS=heads,
        BLOCK_H=block_h,
        BLOCK_D=dim,
        **constants,
    )
    return out if lse is None else (out, lse)


def two_warpgroups(*arguments, return_lse=False):
    """Launch the 64-head Gluon kernel; takes the packaged launcher's arguments, with dense last axes."""
    *tensors, scale = arguments
    return _launch(two_warpgroup_prefill_kernel, 64, tensors, scale, return_lse, BLOCK_K=64, num_warps=8)


def swapped(*arguments, buffers=3, return_lse=False):
    """Launch the few-heads Gluon kernel; takes the packaged launcher's arguments, with dense last axes."""
    *tensors, scale = arguments
    block_h = min(padded(tensors[0].shape[1]), 64)
    return _launch(
        swapped_prefill_kernel, block_h, tensors, scale, return_lse, BLOCK_K=64, BUFFERS=buffers, num_warps=4
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """One design: how to run it and which heads and head dims it is made for."""

    run: Callable[..., torch.Tensor]
    fits: Callable[[int, int], bool]


VARIANTS = {
    "two-warpgroups": Variant(two_warpgroups, lambda heads, dim: heads >= 64 and dim in (256, 512)),
    "swapped-3": Variant(swapped, lambda heads, dim: heads <= 16 and dim in (128, 256, 512)),
    "swapped-2": Variant(functools.partial(swapped, buffers=2), lambda heads, dim: heads <= 32 and dim in (256, 512)),
}
