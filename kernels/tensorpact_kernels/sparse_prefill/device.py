"""Triton kernels for sparse attention over gathered rows (K and V are the same row)."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from tensorpact_kernels.sparse_prefill.device_lists import (
    EXTEND,
    PREFIX,
    clamp_span,
    indices_at,
    is_wrong,
    load_span,
    report_list,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
SCALE_GROUP = tl.constexpr(64)

# Sizes and list addresses change from step to step; specialising on them would compile a kernel for each combination.
COUNTS = [
    "num_pool_rows",
    "num_kv_rows",
    "num_prefix_indices",
    "num_extend_indices",
    "num_indices",
    "num_splits",
    "flag_call",
]
LISTS = [f"{source}{name}_ptr" for source in ("", "prefix_", "extend_") for name in ("indices", "indptr")]
VECTORS = ["sink_ptr", "lse_ptr"]


@no_type_check
@triton.jit
def _no_sums(BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return empty sums of weights: by head and key where a sum over keys crosses warps, else by head."""
    shape: tl.constexpr = (BLOCK_H, BLOCK_K) if BLOCK_H <= 32 else (BLOCK_H,)
    return tl.zeros(shape, dtype=tl.float32)


@no_type_check
@triton.jit
def _total(sums):
    """Return the sums of weights by head."""
    return tl.sum(sums, axis=1) if len(sums.shape) == 2 else sums


@no_type_check
@triton.jit
def _attend_rows(
    q,
    acc,
    row_max,
    sums,
    rows_ptr,
    rows_stride_row,
    rows_stride_dim,
    num_rows,
    scales_ptr,
    scales_stride_row,
    scales_stride_group,
    indices_ptr,
    indices_stride,
    begin,
    end,
    scale_log2,
    past,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    TOLD: tl.constexpr,
):
    """Fold one index list into the running softmax of a block of heads, and into ``past`` whether one is past the rows.

    Indices are compared with the rows as they were loaded, a thread each; the layouts of the products hold many copies.
    """
    LATE_SUM: tl.constexpr = len(sums.shape) == 2
    dims = tl.arange(0, BLOCK_D)
    dim_offsets = dims.to(tl.int64) * rows_stride_dim
    keys = tl.arange(0, BLOCK_K)
    half: tl.constexpr = q.dtype
    # Indices are carried one block ahead: a load that feeds a load in the same iteration would keep the pipeliner
    # from prefetching the rows.
    upcoming = indices_at(indices_ptr, indices_stride, begin + keys, end)
    for position in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        beyond = upcoming >= num_rows
        if TOLD:
            past = past | beyond.to(tl.int32)
        index = tl.where(beyond, -1, upcoming).to(tl.int64)
        valid = index >= 0
        mask = valid[:, None]
        if HEAD_DIM != BLOCK_D:
            mask = mask & (dims < HEAD_DIM)[None, :]
        tile = tl.load(rows_ptr + (index * rows_stride_row)[:, None] + dim_offsets[None, :], mask=mask, other=0.0)
        if scales_ptr is not None:
            groups = tl.arange(0, BLOCK_D // SCALE_GROUP)
            scale_mask = valid[:, None] & (groups < HEAD_DIM // SCALE_GROUP)[None, :]
            scale_offsets = (index * scales_stride_row)[:, None] + (groups.to(tl.int64) * scales_stride_group)[None, :]
            scales = tl.load(scales_ptr + scale_offsets, mask=scale_mask, other=0.0).to(half).to(tl.float32)
            grouped = tl.reshape(tile.to(tl.float32), (BLOCK_K, BLOCK_D // SCALE_GROUP, SCALE_GROUP))
            # The product of two halves is exact in float32, so this rounds once, as a product in the half type does.
            tile = tl.reshape((grouped * scales[:, :, None]).to(half), (BLOCK_K, BLOCK_D))
        upcoming = indices_at(indices_ptr, indices_stride, position + BLOCK_K + keys, end)

        if UPCAST:
            scores = tl.dot(q.to(tl.float32), tl.trans(tile).to(tl.float32), input_precision="ieee")
        else:
            scores = tl.dot(q, tl.trans(tile))
        scores = tl.where(valid[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale_log2)
        correction = tl.exp2(row_max - new_max)
        weights = tl.exp2(scores * scale_log2 - new_max[:, None])
        if LATE_SUM:
            sums = sums * correction[:, None] + weights
        else:
            sums = sums * correction + tl.sum(weights, axis=1)
        acc = acc * correction[:, None]
        if UPCAST:
            acc = tl.dot(weights.to(half).to(tl.float32), tile.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(weights.to(half), tile, acc)
        row_max = new_max
    return acc, row_max, sums, past


@no_type_check
@triton.jit
def with_sink(acc, row_max, row_sum, sink):
    """Normalise by a denominator that includes the sink; also return its natural log."""
    sink_log2 = sink.to(tl.float32) * LOG2_E
    new_max = tl.maximum(row_max, sink_log2)
    correction = tl.exp2(row_max - new_max)
    denominator = row_sum * correction + tl.exp2(sink_log2 - new_max)
    # Only an exact zero means "no key and no sink"; a NaN must stay visible.
    empty = denominator == 0.0
    factor = tl.where(empty, 0.0, correction / tl.where(empty, 1.0, denominator))
    lse = tl.where(empty, float("-inf"), new_max * LN_2 + tl.log(tl.where(empty, 1.0, denominator)))
    return acc * factor[:, None], lse


@no_type_check
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS + VECTORS)
def sparse_prefill_kernel(
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
    flag_memory,
    flag_counters,
    flag_call,
    scale_log2,
    num_pool_rows,
    num_kv_rows,
    num_prefix_indices,
    num_extend_indices,
    q_stride_token,
    q_stride_head,
    q_stride_dim,
    pool_stride_row,
    pool_stride_dim,
    kv_stride_row,
    kv_stride_dim,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    prefix_indices_stride,
    prefix_indptr_stride,
    extend_indices_stride,
    extend_indptr_stride,
    sink_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend one block of a token's heads to the token's prefix rows, then to its extend rows."""
    # torch.compile hands numbers over in float64.
    scale_log2 = tl.cast(scale_log2, tl.float32)
    head_blocks: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    # Head blocks of one token are neighbours in launch order, so that all but the first find the rows in L2.
    token = (tl.program_id(0) // head_blocks).to(tl.int64)
    heads = (tl.program_id(0) % head_blocks) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    tile_mask = (heads < HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    head_offsets = heads.to(tl.int64)[:, None]
    dim_offsets = dims.to(tl.int64)[None, :]
    q_offsets = token * q_stride_token + head_offsets * q_stride_head + dim_offsets * q_stride_dim
    q = tl.load(q_ptr + q_offsets, mask=tile_mask, other=0.0)

    acc = tl.zeros((BLOCK_H, BLOCK_D), dtype=tl.float32)
    row_max = tl.full((BLOCK_H,), LOWEST, dtype=tl.float32)
    sums = _no_sums(BLOCK_H, BLOCK_K)
    TOLD: tl.constexpr = flag_memory is not None
    past = tl.zeros((BLOCK_K,), dtype=tl.int32)
    prefix_begin, prefix_end = load_span(prefix_indptr_ptr, prefix_indptr_stride, token)
    if flag_memory is not None:
        wrong = is_wrong(prefix_begin, prefix_end, num_prefix_indices)
    prefix_begin, prefix_end = clamp_span(prefix_begin, prefix_end, num_prefix_indices)
    acc, row_max, sums, past = _attend_rows(
        q, acc, row_max, sums,
        pool_ptr, pool_stride_row, pool_stride_dim, num_pool_rows, None, 0, 0,
        prefix_indices_ptr, prefix_indices_stride, prefix_begin, prefix_end, scale_log2,
        past, HEAD_DIM, BLOCK_D, BLOCK_K, STAGES, UPCAST, TOLD,
    )  # fmt: skip
    begin, end = load_span(extend_indptr_ptr, extend_indptr_stride, token)
    if flag_memory is not None:
        wrong = wrong | is_wrong(begin, end, num_extend_indices)
    begin, end = clamp_span(begin, end, num_extend_indices)
    acc, row_max, sums, past = _attend_rows(
        q, acc, row_max, sums,
        kv_ptr, kv_stride_row, kv_stride_dim, num_kv_rows, None, 0, 0,
        extend_indices_ptr, extend_indices_stride, begin, end, scale_log2,
        past, HEAD_DIM, BLOCK_D, BLOCK_K, STAGES, UPCAST, TOLD,
    )  # fmt: skip

    sink = tl.load(sink_ptr + heads.to(tl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
    out, lse = with_sink(acc, row_max, _total(sums), sink)
    out_offsets = token * out_stride_token + head_offsets * out_stride_head + dim_offsets * out_stride_dim
    tl.store(out_ptr + out_offsets, out.to(q.dtype), mask=tile_mask)
    if lse_ptr is not None:
        tl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
    if flag_memory is not None:
        # The other head blocks have the same lists.
        if (tl.program_id(0) % head_blocks == 0) & (wrong | (tl.max(past, axis=0) > 0)):
            tl.debug_barrier()
            report_list(
                flag_memory, flag_counters, flag_call, PREFIX, prefix_indptr_ptr, prefix_indptr_stride, token,
                num_prefix_indices, prefix_indices_ptr, prefix_indices_stride, prefix_begin, prefix_end, num_pool_rows,
            )  # fmt: skip
            report_list(
                flag_memory, flag_counters, flag_call, EXTEND, extend_indptr_ptr, extend_indptr_stride, token,
                num_extend_indices, extend_indices_ptr, extend_indices_stride, begin, end, num_kv_rows,
            )  # fmt: skip


@no_type_check
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=LISTS + VECTORS)
def sparse_decode_kernel(
    q_ptr,
    pool_ptr,
    indices_ptr,
    indptr_ptr,
    sink_ptr,
    scales_ptr,
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
    num_indices,
    num_splits,
    q_stride_token,
    q_stride_head,
    q_stride_dim,
    pool_stride_row,
    pool_stride_dim,
    scales_stride_row,
    scales_stride_group,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    indices_stride,
    indptr_stride,
    sink_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend one block of a token's heads to one split of the token's rows; a single split writes the result itself."""
    # torch.compile hands numbers over in float64.
    scale_log2 = tl.cast(scale_log2, tl.float32)
    head_blocks: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    part = tl.program_id(0) // head_blocks
    token = (part // num_splits).to(tl.int64)
    split = part % num_splits
    heads = (tl.program_id(0) % head_blocks) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    tile_mask = (heads < HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    head_offsets = heads.to(tl.int64)[:, None]
    dim_offsets = dims.to(tl.int64)[None, :]

    begin, end = load_span(indptr_ptr, indptr_stride, token)
    if flag_memory is not None:
        # The other splits have the same offsets.
        wrong = is_wrong(begin, end, num_indices) & (split == 0)
    begin, end = clamp_span(begin, end, num_indices)
    if SPLIT:
        share = tl.cdiv(tl.cdiv(end - begin, num_splits), BLOCK_K) * BLOCK_K
        begin += split * share
        end = tl.minimum(end, begin + share)
    q_offsets = token * q_stride_token + head_offsets * q_stride_head + dim_offsets * q_stride_dim
    q = tl.load(q_ptr + q_offsets, mask=tile_mask, other=0.0)
    acc = tl.zeros((BLOCK_H, BLOCK_D), dtype=tl.float32)
    row_max = tl.full((BLOCK_H,), LOWEST, dtype=tl.float32)
    sums = _no_sums(BLOCK_H, BLOCK_K)
    TOLD: tl.constexpr = flag_memory is not None
    past = tl.zeros((BLOCK_K,), dtype=tl.int32)
    acc, row_max, sums, past = _attend_rows(
        q, acc, row_max, sums,
        pool_ptr, pool_stride_row, pool_stride_dim, num_pool_rows, scales_ptr, scales_stride_row, scales_stride_group,
        indices_ptr, indices_stride, begin, end, scale_log2,
        past, HEAD_DIM, BLOCK_D, BLOCK_K, STAGES, UPCAST, TOLD,
    )  # fmt: skip

    if not SPLIT:
        sink = tl.load(sink_ptr + heads.to(tl.int64) * sink_stride, mask=heads < HEADS, other=0.0)
        out, lse = with_sink(acc, row_max, _total(sums), sink)
        out_offsets = token * out_stride_token + head_offsets * out_stride_head + dim_offsets * out_stride_dim
        tl.store(out_ptr + out_offsets, out.to(q.dtype), mask=tile_mask)
        if lse_ptr is not None:
            tl.store(lse_ptr + token * HEADS + heads, lse, mask=heads < HEADS)
    else:
        partial = (token * HEADS + heads) * num_splits + split
        tl.store(partial_max_ptr + partial, row_max, mask=heads < HEADS)
        tl.store(partial_sum_ptr + partial, _total(sums), mask=heads < HEADS)
        tl.store(partial_acc_ptr + partial[:, None] * HEAD_DIM + dim_offsets, acc, mask=tile_mask)
    if flag_memory is not None:
        # The other head blocks have the same list.
        if (tl.program_id(0) % head_blocks == 0) & (wrong | (tl.max(past, axis=0) > 0)):
            tl.debug_barrier()
            report_list(
                flag_memory, flag_counters, flag_call, PREFIX, indptr_ptr, indptr_stride, token, num_indices,
                indices_ptr, indices_stride, begin, end, num_pool_rows,
            )  # fmt: skip
