"""Other designs of sparse prefill, timed beside the packaged kernels; each masks and skips as those do.

On an H200, tokens x heads x head dim, rows from the pool + new rows:
"""

import math
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

from tensorpact_kernels.sparse_prefill.device_hopper import (
    COUNTS,
    LISTS,
    LOWEST,
    barrier,
    gather,
    indices_of,
    span,
    tiles_of,
    with_sink,
)
from tensorpact_kernels.sparse_prefill.launch import LOG2_E


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS)
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

    prefix_begin, prefix_end = span(prefix_indptr_ptr, prefix_indptr_stride, token, num_prefix_indices)
    extend_begin, extend_end = span(extend_indptr_ptr, extend_indptr_stride, token, num_extend_indices)
    prefix = (prefix_indices_ptr, prefix_indices_stride, prefix_begin, prefix_end, num_pool_rows)
    extend = (extend_indices_ptr, extend_indices_stride, extend_begin, extend_end, num_kv_rows)
    pool = (pool_ptr, pool_stride_row)
    kv = (kv_ptr, kv_stride_row)
    prefix_tiles = tiles_of(prefix_begin, prefix_end, BLOCK_K)
    tiles = prefix_tiles + tiles_of(extend_begin, extend_end, BLOCK_K)
    AHEAD: gl.constexpr = 1 if BUFFERS == 1 else BUFFERS - 1

    for step in gl.static_range(AHEAD):
        index = indices_of(step, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
        gather(kv_tiles.index(step), step, prefix_tiles, tiles, pool, kv, index, True, COPY)
    index = indices_of(AHEAD, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
    key = indices_of(0, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, SCORES))

    row_max = gl.full([BLOCK_H], LOWEST, gl.float32, HEAD)
    sums = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    empty_scores = gl.full([BLOCK_K, BLOCK_H], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_D, BLOCK_H], 0.0, gl.float32, SCORES)
    for step in range(tiles):
        tile = kv_tiles.index(step % BUFFERS)
        async_copy.wait_group(AHEAD - 1)
        fence_async_shared()
        # From here on every warp sees this tile, and no warp reads the one before any more.
        barrier()
        pending = warpgroup_mma(tile, q_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
        upcoming = step + AHEAD
        if BUFFERS > 1:
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
        if BUFFERS == 1:
            barrier()
            gather(kv_tiles.index(0), upcoming, prefix_tiles, tiles, pool, kv, index, True, COPY)
            index = indices_of(upcoming + 1, prefix_tiles, prefix, extend, BLOCK_K, gl.SliceLayout(1, COPY))
    async_copy.wait_group(0)

    row_sum = gl.sum(sums, axis=0)
    heads = first_head + gl.arange(0, BLOCK_H, layout=HEAD)
    sink = gl.load(sink_ptr + heads.to(gl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
    factor, lse = with_sink(row_max, row_sum, sink)
    if lse_ptr is not None:
        gl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
    values = (values * gl.expand_dims(factor, 0)).to(dtype)
    rounded = gl.convert_layout(gl.permute(values, (1, 0)), COPY)
    out_rows = out_ptr + token * out_stride_token + copy_heads.to(gl.int64) * out_stride_head
    out_pointers = gl.expand_dims(out_rows, 1) + gl.expand_dims(copy_dims, 0)
    gl.store(out_pointers, rounded, mask=gl.expand_dims(copy_heads < HEADS, 1))


def swapped(*arguments, buffers, return_lse=False):
    """Launch the kernel with so many key tiles in shared memory; takes the packaged launcher's arguments."""
    *tensors, scale = arguments
    q, unified_kv, _, _, kv, _, _, _ = tensors
    tokens, heads, dim = q.shape
    out = torch.empty_like(q)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device) if return_lse else None
    lists = [tensors[position] for position in (2, 3, 5, 6, 7)]
    swapped_prefill_kernel[(tokens * math.ceil(heads / 16),)](
        *tensors,
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
        *(entries.stride(0) for entries in lists),
        HEADS=heads,
        BLOCK_H=16,
        BLOCK_D=dim,
        BLOCK_K=64,
        BUFFERS=buffers,
        num_warps=4,
    )
    return out if lse is None else (out, lse)


@dataclass(frozen=True, slots=True)
class Variant:
    """One design: how to run it and which heads and head dims it is made for."""

    run: Callable[..., torch.Tensor]
    fits: Callable[[int, int], bool]


def _few_heads(heads: int, dim: int) -> bool:
    return heads <= 16 and dim == 512


VARIANTS = {
    "serial-3": Variant(partial(swapped, buffers=3), _few_heads),
    "serial-2": Variant(partial(swapped, buffers=2), _few_heads),
    "serial-1": Variant(partial(swapped, buffers=1), _few_heads),
}
