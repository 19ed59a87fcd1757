"""Other designs of sparse prefill, timed beside the packaged kernels; each masks and skips as those do.

Both put keys on the 64 rows of the matrix instruction, as the packaged kernel for few heads does, but give one
program the whole multiprocessor. Copying a tile keeps a program's own warps from computing, whatever is in flight, so
two programs with one tile each, the packaged form, are faster. An H200 gave, in TFLOP/s at T 1024, H 16, D 512, 1024
+ 128 keys: serial with two tiles 110, with three 111, overlapped 113, packaged 174. Eight warps instead of four made
the serial forms slower still (95 and 97).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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

from tensorpact_kernels._gluon import barrier
from tensorpact_kernels.sparse_prefill.device_hopper import (
    COUNTS,
    LISTS,
    LOWEST,
    gather,
    indices_of,
    span,
    tiles_of,
    with_sink,
)
from tensorpact_kernels.sparse_prefill.launch import LOG2_E


@no_type_check
@gluon.jit
def _softmax(scores, valid, row_max, sums, scale_log2):
    """Return a tile's weights, what rescales the earlier ones, and the new running maximum and sums."""
    scores = gl.where(gl.expand_dims(valid, 1), scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(scores, axis=0) * scale_log2)
    correction = gl.exp2(row_max - new_max)
    weights = gl.exp2(scores * scale_log2 - gl.expand_dims(new_max, 0))
    return weights, correction, new_max, sums * gl.expand_dims(correction, 0) + weights


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def overlapped_prefill_kernel(
    q_ptr,
    pool_ptr,
    prefix_indices_ptr,
    prefix_indptr_ptr,
    kv_ptr,
    extend_indices_ptr,
    extend_indptr_ptr,
    sink_ptr,
    out_ptr,
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
    """One program a multiprocessor: the scores of a tile are computed beside the values of the tile before."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_H, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, SCORES)
    COPY_KEY: gl.constexpr = gl.SliceLayout(1, COPY)
    SCORE_KEY: gl.constexpr = gl.SliceLayout(1, SCORES)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    NARROW: gl.constexpr = gl.NVMMASharedLayout(2 * BLOCK_H, 16, 2)

    token = gl.program_id(0).to(gl.int64)
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_D], WIDE)
    kv_tiles = gl.allocate_shared_memory(dtype, [3, BLOCK_K, BLOCK_D], WIDE)
    weights_tiles = gl.allocate_shared_memory(dtype, [2, BLOCK_K, BLOCK_H], NARROW)

    prefix_begin, prefix_end = span(prefix_indptr_ptr, prefix_indptr_stride, token, num_prefix_indices)
    extend_begin, extend_end = span(extend_indptr_ptr, extend_indptr_stride, token, num_extend_indices)
    prefix = (prefix_indices_ptr, prefix_indices_stride, prefix_begin, prefix_end, num_pool_rows)
    extend = (extend_indices_ptr, extend_indices_stride, extend_begin, extend_end, num_kv_rows)
    pool = (pool_ptr, pool_stride_row)
    kv = (kv_ptr, kv_stride_row)
    prefix_tiles = tiles_of(prefix_begin, prefix_end, BLOCK_K)
    tiles = prefix_tiles + tiles_of(extend_begin, extend_end, BLOCK_K)

    copy_heads = gl.arange(0, BLOCK_H, layout=COPY_KEY)
    copy_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, COPY))
    q_rows = q_ptr + token * q_stride_token + copy_heads.to(gl.int64) * q_stride_head
    q_pointers = gl.expand_dims(q_rows, 1) + gl.expand_dims(copy_dims, 0)
    async_copy.async_copy_global_to_shared(q_tile, q_pointers, mask=gl.expand_dims(copy_heads < HEADS, 1))
    index = indices_of(0, prefix_tiles, prefix, extend, BLOCK_K, COPY_KEY)
    second_index = indices_of(1, prefix_tiles, prefix, extend, BLOCK_K, COPY_KEY)
    key = indices_of(0, prefix_tiles, prefix, extend, BLOCK_K, SCORE_KEY)
    gather(kv_tiles.index(0), 0, prefix_tiles, tiles, pool, kv, index, True, COPY)
    gather(kv_tiles.index(1), 1, prefix_tiles, tiles, pool, kv, second_index, True, COPY)
    index = indices_of(2, prefix_tiles, prefix, extend, BLOCK_K, COPY_KEY)

    row_max = gl.full([BLOCK_H], LOWEST, gl.float32, HEAD)
    sums = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    empty_scores = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_D, BLOCK_H], 0.0, gl.float32, SCORES)
    query = q_tile.permute((1, 0))
    async_copy.wait_group(1)
    fence_async_shared()
    barrier()
    scores = warpgroup_mma(kv_tiles.index(0), query, empty_scores, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    valid = (key >= 0) & (tiles > 0)
    weights, correction, row_max, sums = _softmax(scores, valid, row_max, sums, scale_log2)
    weights_tiles.index(0).store(weights.to(dtype))
    key = indices_of(1, prefix_tiles, prefix, extend, BLOCK_K, SCORE_KEY)
    for step in range(tiles):
        tile = kv_tiles.index(step % 3)
        weights_tile = weights_tiles.index(step % 2)
        async_copy.wait_group(0)
        fence_async_shared()
        # From here on every warp sees the next tile and these weights, and no warp reads the tile before any more.
        barrier()
        # Behind the last tile the scores are those of whatever the buffer holds; none of them is valid.
        scores = warpgroup_mma(kv_tiles.index((step + 1) % 3), query, empty_scores, use_acc=False, is_async=True)
        values = warpgroup_mma(tile.permute((1, 0)), weights_tile, values, is_async=True)
        gather(kv_tiles.index((step + 2) % 3), step + 2, prefix_tiles, tiles, pool, kv, index, True, COPY)
        valid = (key >= 0) & (step + 1 < tiles)
        index = indices_of(step + 3, prefix_tiles, prefix, extend, BLOCK_K, COPY_KEY)
        key = indices_of(step + 2, prefix_tiles, prefix, extend, BLOCK_K, SCORE_KEY)
        scores = warpgroup_mma_wait(1, deps=(scores,))
        weights, correction, row_max, sums = _softmax(scores, valid, row_max, sums, scale_log2)
        values = warpgroup_mma_wait(0, deps=(values,))
        values = values * gl.expand_dims(correction, 0)
        weights_tiles.index((step + 1) % 2).store(weights.to(dtype))
    async_copy.wait_group(0)

    row_sum = gl.sum(sums, axis=0)
    heads = gl.arange(0, BLOCK_H, layout=HEAD)
    sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
    factor, _ = with_sink(row_max, row_sum, sink)
    values = (values * gl.expand_dims(factor, 0)).to(dtype)
    out_rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
    out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(copy_dims, 0)
    rounded = gl.convert_layout(gl.permute(values, (1, 0)), COPY)
    gl.store(out_pointers, rounded, mask=gl.expand_dims(copy_heads < HEADS, 1))


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
def serial_prefill_kernel(
    q_ptr,
    pool_ptr,
    prefix_indices_ptr,
    prefix_indptr_ptr,
    kv_ptr,
    extend_indices_ptr,
    extend_indptr_ptr,
    sink_ptr,
    out_ptr,
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
    """One program a multiprocessor: several tiles in flight, one at a time computed."""
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_H, 16])
    HEAD: gl.constexpr = gl.SliceLayout(0, SCORES)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    NARROW: gl.constexpr = gl.NVMMASharedLayout(2 * BLOCK_H, 16, 2)

    token = gl.program_id(0).to(gl.int64)
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_H, BLOCK_D], WIDE)
    kv_tiles = gl.allocate_shared_memory(dtype, [BUFFERS, BLOCK_K, BLOCK_D], WIDE)
    weights_tile = gl.allocate_shared_memory(dtype, [BLOCK_K, BLOCK_H], NARROW)

    copy_heads = gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, COPY))
    copy_dims = gl.arange(0, BLOCK_D, layout=gl.SliceLayout(0, COPY))
    q_rows = q_ptr + token * q_stride_token + copy_heads.to(gl.int64) * q_stride_head
    q_pointers = gl.expand_dims(q_rows, 1) + gl.expand_dims(copy_dims, 0)
    async_copy.async_copy_global_to_shared(q_tile, q_pointers, mask=gl.expand_dims(copy_heads < HEADS, 1))

    prefix_begin, prefix_end = span(prefix_indptr_ptr, prefix_indptr_stride, token, num_prefix_indices)
    extend_begin, extend_end = span(extend_indptr_ptr, extend_indptr_stride, token, num_extend_indices)
    prefix = (prefix_indices_ptr, prefix_indices_stride, prefix_begin, prefix_end, num_pool_rows)
    extend = (extend_indices_ptr, extend_indices_stride, extend_begin, extend_end, num_kv_rows)
    pool = (pool_ptr, pool_stride_row)
    kv = (kv_ptr, kv_stride_row)
    prefix_tiles = tiles_of(prefix_begin, prefix_end, BLOCK_K)
    tiles = prefix_tiles + tiles_of(extend_begin, extend_end, BLOCK_K)

    for step in gl.static_range(BUFFERS - 1):
        index = indices_of(step, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
        gather(kv_tiles.index(step), step, prefix_tiles, tiles, pool, kv, index, True, COPY)
    index = indices_of(BUFFERS - 1, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
    key = indices_of(0, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, SCORES))

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
        gather(kv_tiles.index(upcoming % BUFFERS), upcoming, prefix_tiles, tiles, pool, kv, index, True, COPY)
        index = indices_of(upcoming + 1, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
        valid = key >= 0
        key = indices_of(step + 1, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, SCORES))
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
    async_copy.wait_group(0)

    row_sum = gl.sum(sums, axis=0)
    heads = gl.arange(0, BLOCK_H, layout=HEAD)
    sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
    factor, _ = with_sink(row_max, row_sum, sink)
    values = (values * gl.expand_dims(factor, 0)).to(dtype)
    rounded = gl.convert_layout(gl.permute(values, (1, 0)), COPY)
    out_rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
    out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(copy_dims, 0)
    gl.store(out_pointers, rounded, mask=gl.expand_dims(copy_heads < HEADS, 1))


def launch(kernel, *arguments, **constants):
    """Launch one of the kernels; takes the packaged launcher's arguments."""
    *tensors, scale = arguments
    q, unified_kv, _, _, kv, _, _, _ = tensors
    out = torch.empty_like(q)
    lists = [tensors[position] for position in (2, 3, 5, 6, 7)]
    kernel[(len(q),)](
        *tensors,
        out,
        float(scale) * LOG2_E,
        unified_kv.shape[0],
        kv.shape[0],
        lists[0].shape[0],
        lists[2].shape[0],
        *q.stride()[:2],
        unified_kv.stride(0),
        kv.stride(0),
        *out.stride()[:2],
        *(entries.stride(0) for entries in lists),
        HEADS=q.shape[1],
        BLOCK_H=16,
        BLOCK_D=q.shape[2],
        BLOCK_K=64,
        num_warps=4,
        **constants,
    )
    return out


@dataclass(frozen=True, slots=True)
class Variant:
    """One design: how to run it and which heads and head dims it is made for."""

    run: Callable[..., torch.Tensor]
    fits: Callable[[int, int], bool]


def _few_heads(heads: int, dim: int) -> bool:
    return heads <= 16 and dim == 512


VARIANTS = {
    "overlapped": Variant(partial(launch, overlapped_prefill_kernel), _few_heads),
    "serial, 3 tiles": Variant(partial(launch, serial_prefill_kernel, BUFFERS=3), _few_heads),
    "serial, 2 tiles": Variant(partial(launch, serial_prefill_kernel, BUFFERS=2), _few_heads),
}
