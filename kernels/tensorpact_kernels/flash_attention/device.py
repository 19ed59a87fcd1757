"""Triton kernel for attention with a key-value cache: one tile of packed query rows against one share of the keys."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from tensorpact_kernels.flash_attention.device_report import (
    SCAN,
    fold_pages,
    is_sequence_wrong,
    load_numbers,
    report_program,
)
from tensorpact_kernels.flash_attention.device_spans import key_span, query_span, rotated, seen_by

LOWEST = tl.constexpr(-3.4028234663852886e38)
LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)

# Sizes change from call to call; specialising on them would compile a kernel for each combination.
COUNTS = [
    "max_q",
    "num_q_tokens",
    "cached",
    "num_new",
    "num_new_tokens",
    "capacity",
    "num_rows",
    "num_pages",
    "table_rows",
    "left",
    "right",
    "chunk",
    "num_tiles",
    "num_splits",
    "lse_stride_batch",
    "lse_stride_head",
    "flag_call",
]
# Boundaries, lengths and sinks are read a number at a time.
VECTORS = [
    "cu_q_ptr",
    "used_q_ptr",
    "cu_k_ptr",
    "used_k_ptr",
    "leftpad_ptr",
    "batch_idx_ptr",
    "cu_new_ptr",
    "rotary_base_ptr",
    "page_table_ptr",
    "sinks_ptr",
    "lse_ptr",
]


@no_type_check
@triton.jit
def with_sink(row_max, row_sum, sink_log2):
    """Return the factor that normalises an accumulator, and the log denominator, of a softmax that has a sink."""
    new_max = tl.maximum(row_max, sink_log2)
    # Without a key and without a sink both are minus infinity, and their difference would be a NaN.
    new_max = tl.where(new_max == float("-inf"), 0.0, new_max)
    correction = tl.exp2(row_max - new_max)
    denominator = row_sum * correction + tl.exp2(sink_log2 - new_max)
    # Only an exact zero means "no key"; a NaN must stay visible.
    empty = denominator == 0.0
    denominator = tl.where(empty, 1.0, denominator)
    lse = tl.where(empty, float("-inf"), (new_max + tl.log2(denominator)) * LN_2)
    return tl.where(empty, 0.0, correction / denominator), lse


@no_type_check
@triton.jit
def _locate(
    start,
    begin,
    end,
    table_ptr,
    table_stride_page,
    num_pages,
    PAGED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return row or page, slot in it, and whether there is one, of each slot of a tile that a tile of queries needs."""
    slot = start + tl.arange(0, BLOCK_N)
    there = (slot >= begin) & (slot < end)
    if PAGED:
        if PAGE % BLOCK_N == 0:
            # The whole tile is in one page; the loop begins at a multiple of the tile.
            row = tl.load(table_ptr + tl.cast(start // PAGE, tl.int64) * table_stride_page).to(tl.int64)
            there = (slot >= begin) & (slot < tl.where((row >= 0) & (row < num_pages), end, begin))
        else:
            page_ptr = table_ptr + (slot // PAGE).to(tl.int64) * table_stride_page
            row = tl.load(page_ptr, mask=there, other=-1).to(tl.int64)
            there = there & (row >= 0) & (row < num_pages)
        inside = (slot % PAGE).to(tl.int64)
    else:
        row = begin.to(tl.int64) * 0
        inside = slot.to(tl.int64)
    return row, inside, there


@no_type_check
@triton.jit
def _fold(
    state,
    queries,
    keys,
    values,
    places,
    begin,
    end,
    first_needed,
    last_needed,
    low,
    high,
    scale_in,
    scale_out,
    KEYS: tl.constexpr,
    VALUE_QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGED: tl.constexpr,
    PAGE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Fold the slots from ``begin`` to ``end`` into the running softmax of a tile of query rows."""
    acc, row_max, row_sum = state
    q, qv = queries
    k_ptr, k_stride_row, k_stride_slot, k_stride_dim = keys
    v_ptr, v_stride_row, v_stride_slot, v_stride_dim = values
    table_ptr, table_stride_page, num_pages = places
    half: tl.constexpr = v_ptr.dtype.element_ty
    value_dims = tl.arange(0, BLOCK_V)
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        row, slot, there = _locate(
            start, first_needed, last_needed, table_ptr, table_stride_page, num_pages, PAGED, PAGE, BLOCK_N
        )  # fmt: skip
        v_offsets = (row * v_stride_row + slot * v_stride_slot)[:, None]
        v_pointers = v_ptr + v_offsets + (value_dims.to(tl.int64) * v_stride_dim)[None, :]
        v_mask = there[:, None] & (value_dims < VALUE_DIM)[None, :]
        if VALUE_QUERIES:
            v = tl.load(v_pointers, mask=v_mask, other=0.0)
            if UPCAST:
                scores = tl.dot(qv.to(tl.float32), tl.trans(v).to(tl.float32), input_precision="ieee")
            else:
                scores = tl.dot(qv, tl.trans(v))
        if KEYS:
            dims = tl.arange(0, BLOCK_D)
            k_offsets = (row * k_stride_row + slot * k_stride_slot)[None, :]
            k_pointers = k_ptr + k_offsets + (dims.to(tl.int64) * k_stride_dim)[:, None]
            k = tl.load(k_pointers, mask=there[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
            if UPCAST:
                products = tl.dot(q.to(tl.float32), k.to(tl.float32), input_precision="ieee")
                scores = scores + products if VALUE_QUERIES else products
            elif VALUE_QUERIES:
                scores = tl.dot(q, k, scores)
            else:
                scores = tl.dot(q, k)
        if SOFTCAP:
            scores = 1.0 - 2.0 / (tl.exp2(scores * scale_in) + 1.0)
        if MASKED:
            position = start + tl.arange(0, BLOCK_N)
            seen = there[None, :] & (position[None, :] >= low[:, None]) & (position[None, :] <= high[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        elif PAGED:
            scores = tl.where(there[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale_out)
        correction = tl.exp2(row_max - new_max)
        weights = tl.exp2(scores * scale_out - new_max[:, None])
        row_sum = row_sum * correction + tl.sum(weights, axis=1)
        acc = acc * correction[:, None]
        if not VALUE_QUERIES:
            v = tl.load(v_pointers, mask=v_mask, other=0.0)
        if UPCAST:
            acc = tl.dot(weights.to(half).to(tl.float32), v.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(weights.to(half), v, acc)
        row_max = new_max
    return acc, row_max, row_sum


@no_type_check
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=VECTORS)
def flash_kernel(
    q_ptr,
    qv_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    partial_acc_ptr,
    partial_lse_ptr,
    sinks_ptr,
    cu_q_ptr,
    used_q_ptr,
    cu_k_ptr,
    used_k_ptr,
    leftpad_ptr,
    batch_idx_ptr,
    page_table_ptr,
    cu_new_ptr,
    cos_ptr,
    sin_ptr,
    rotary_base_ptr,
    flag_memory,
    flag_counters,
    flag_call,
    scale_in,
    scale_out,
    max_q,
    num_q_tokens,
    cached,
    num_new,
    num_new_tokens,
    capacity,
    num_rows,
    num_pages,
    table_rows,
    left,
    right,
    chunk,
    num_tiles,
    num_splits,
    lse_stride_batch,
    lse_stride_head,
    q_stride_batch,
    q_stride_token,
    q_stride_head,
    q_stride_dim,
    qv_stride_batch,
    qv_stride_token,
    qv_stride_head,
    qv_stride_dim,
    k_stride_row,
    k_stride_slot,
    k_stride_head,
    k_stride_dim,
    v_stride_row,
    v_stride_slot,
    v_stride_head,
    v_stride_dim,
    out_stride_batch,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    page_table_stride_row,
    page_table_stride_page,
    cos_stride,
    sin_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGED: tl.constexpr,
    PAGE: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    CHUNKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COUNTS_UP: tl.constexpr,
    SPLIT: tl.constexpr,
    PHASES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attend a tile of query rows, tokens times the heads of one key head, to one share of its sequence's slots."""
    # torch.compile hands numbers over in float64.
    scale_in = tl.cast(scale_in, tl.float32)
    scale_out = tl.cast(scale_out, tl.float32)
    key_heads: tl.constexpr = HEADS // GROUP
    KEYS: tl.constexpr = q_ptr is not None
    VALUE_QUERIES: tl.constexpr = qv_ptr is not None
    # Key heads of one slot are neighbours in memory, so they are in launch order; tiles that see the most come first.
    key_head = (tl.program_id(0) % key_heads).to(tl.int64)
    rest = tl.program_id(0) // key_heads
    tile = num_tiles - 1 - rest % num_tiles
    split = (rest // num_tiles) % num_splits
    sequence = (rest // num_tiles // num_splits).to(tl.int64)

    first_q, q_length = query_span(cu_q_ptr, used_q_ptr, sequence, max_q, num_q_tokens)
    first_row = tile * BLOCK_M
    if first_row >= q_length * GROUP:
        return
    first_key, first_slot, filled = key_span(
        cu_k_ptr, used_k_ptr, leftpad_ptr, cu_new_ptr, sequence, cached, num_new, num_new_tokens, capacity
    )  # fmt: skip
    row = sequence
    if batch_idx_ptr is not None:
        row = tl.load(batch_idx_ptr + sequence).to(tl.int64)
    room = tl.where((row >= 0) & (row < num_rows), capacity, 0).to(tl.int32)
    row = tl.where((row >= 0) & (row < num_rows), row, 0)

    rows = first_row + tl.arange(0, BLOCK_M)
    token = rows // GROUP
    head = key_head * GROUP + rows % GROUP
    is_query = token < q_length
    offset = filled - q_length
    low, high = seen_by(token + offset, first_slot, filled, room, left, right, chunk, LEFT, RIGHT, CHUNKED)
    first_token = first_row // GROUP
    last_token = tl.minimum((first_row + BLOCK_M - 1) // GROUP, q_length - 1)
    begin, whole_end = seen_by(
        first_token + offset, first_slot, filled, room, left, right, chunk, LEFT, RIGHT, CHUNKED
    )  # fmt: skip
    whole_begin, end = seen_by(
        last_token + offset, first_slot, filled, room, left, right, chunk, LEFT, RIGHT, CHUNKED
    )  # fmt: skip
    # Whatever the lengths say, no slot behind the capacity is looked up.
    end = tl.maximum(end + 1, 0)
    begin = tl.minimum(begin, end)
    aligned = begin // BLOCK_N * BLOCK_N
    share_begin = aligned
    share_end = end
    if SPLIT:
        steps = tl.cdiv(end - aligned, BLOCK_N)
        share = tl.cdiv(steps, num_splits) * BLOCK_N
        # Divided among fewer where the shares round up; a product of both could be larger than the range.
        share_begin = tl.minimum(aligned + split * share, end)
        share_end = tl.minimum(share_begin + share, end)

    q_row = sequence * q_stride_batch + (first_q + token) * q_stride_token + head * q_stride_head
    if KEYS:
        dims = tl.arange(0, BLOCK_D)
        q_pointers = q_ptr + q_row[:, None] + (dims.to(tl.int64) * q_stride_dim)[None, :]
        q_mask = is_query[:, None] & (dims < HEAD_DIM)[None, :]
        q = tl.load(q_pointers, mask=q_mask, other=0.0)
        if ROTARY_DIM > 0:
            # The cache's own length, new tokens not counted, is where they begin.
            position = tl.zeros_like(token) + cached
            if rotary_base_ptr is not None:
                position = tl.zeros_like(token) + tl.load(rotary_base_ptr + sequence)
            if COUNTS_UP:
                position += token
            q = rotated(
                q, q_pointers, q_mask, q_stride_dim, cos_ptr, sin_ptr, cos_stride, sin_stride, position, table_rows,
                dims, ROTARY_DIM, INTERLEAVED,
            )  # fmt: skip
    else:
        q = is_query
    if VALUE_QUERIES:
        qv_dims = tl.arange(0, BLOCK_V)
        qv_row = sequence * qv_stride_batch + (first_q + token) * qv_stride_token + head * qv_stride_head
        qv_pointers = qv_ptr + qv_row[:, None] + (qv_dims.to(tl.int64) * qv_stride_dim)[None, :]
        qv = tl.load(qv_pointers, mask=is_query[:, None] & (qv_dims < VALUE_DIM)[None, :], other=0.0)
    else:
        qv = is_query

    # A tuple holds no None, so what is not there is stood in for by something that nothing looks at.
    k_head_ptr = v_ptr
    if KEYS:
        k_head_ptr = k_ptr + key_head * k_stride_head + first_key * k_stride_slot
        if not PAGED:
            k_head_ptr += row * k_stride_row
    v_head_ptr = v_ptr + key_head * v_stride_head + first_key * v_stride_slot
    if not PAGED:
        v_head_ptr += row * v_stride_row
    table_ptr = v_ptr
    if PAGED:
        table_ptr = page_table_ptr + row * page_table_stride_row
        if flag_memory is not None:
            first_seen = tl.maximum(begin, share_begin)
    acc = tl.zeros((BLOCK_M, BLOCK_V), dtype=tl.float32)
    row_max = tl.full((BLOCK_M,), LOWEST, dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    state = (acc, row_max, row_sum)
    queries = (q, qv)
    keys = (k_head_ptr, k_stride_row, k_stride_slot, k_stride_dim)
    values = (v_head_ptr, v_stride_row, v_stride_slot, v_stride_dim)
    places = (table_ptr, page_table_stride_page, num_pages)
    if PHASES:
        whole_begin = tl.minimum(tl.maximum(tl.cdiv(whole_begin, BLOCK_N) * BLOCK_N, share_begin), share_end)
        whole_end = (whole_end + 1) // BLOCK_N * BLOCK_N
        whole_end = tl.maximum(tl.minimum(whole_end, share_end), whole_begin)
        if LEFT or CHUNKED or leftpad_ptr is not None:
            state = _fold(
                state, queries, keys, values, places, share_begin, whole_begin, begin, share_end, low, high,
                scale_in, scale_out, KEYS, VALUE_QUERIES, HEAD_DIM, VALUE_DIM, PAGED, PAGE, SOFTCAP,
                BLOCK_N, BLOCK_D, BLOCK_V, STAGES, UPCAST, True,
            )  # fmt: skip
        state = _fold(
            state, queries, keys, values, places, whole_begin, whole_end, begin, share_end, low, high,
            scale_in, scale_out, KEYS, VALUE_QUERIES, HEAD_DIM, VALUE_DIM, PAGED, PAGE, SOFTCAP,
            BLOCK_N, BLOCK_D, BLOCK_V, STAGES, UPCAST, False,
        )  # fmt: skip
        share_begin = whole_end
    acc, row_max, row_sum = _fold(
        state, queries, keys, values, places, share_begin, share_end, begin, share_end, low, high,
        scale_in, scale_out, KEYS, VALUE_QUERIES, HEAD_DIM, VALUE_DIM, PAGED, PAGE, SOFTCAP,
        BLOCK_N, BLOCK_D, BLOCK_V, STAGES, UPCAST, True,
    )  # fmt: skip

    if flag_memory is not None:
        # The other key heads have the same pages. The program of the first tile of queries, which every sequence with a
        # query has, speaks for the sequence.
        is_first = (key_head == 0) & (split == 0) & (tile == 0)
        wrong = tl.zeros((SCAN,), dtype=tl.int32)
        if cu_k_ptr is None:
            numbers = load_numbers(batch_idx_ptr, used_k_ptr, sequence)
            sequence_wrong = is_sequence_wrong(numbers, batch_idx_ptr, used_k_ptr, num_new, capacity, num_rows)
            wrong += (is_first & sequence_wrong).to(tl.int32)
        if PAGED:
            seen_end = tl.where(key_head == 0, share_end, 0)
            wrong = fold_pages(wrong, table_ptr, page_table_stride_page, first_seen, seen_end, num_pages, PAGE)
    value_dims = tl.arange(0, BLOCK_V)
    out_mask = is_query[:, None] & (value_dims < VALUE_DIM)[None, :]
    if SPLIT:
        factor, _ = with_sink(row_max, row_sum, float("-inf"))
        log2_sum = tl.where(row_sum == 0.0, float("-inf"), row_max + tl.log2(row_sum))
        number = (sequence * max_q + first_q + token) * HEADS + head
        if cu_q_ptr is not None:
            number = (first_q + token) * HEADS + head
        place = number * num_splits + split
        tl.store(partial_lse_ptr + place, log2_sum, mask=is_query)
        # Without a key there is nothing to merge, and the merge does not read it.
        tl.store(
            partial_acc_ptr + place[:, None] * VALUE_DIM + value_dims[None, :],
            acc * factor[:, None],
            mask=out_mask & (log2_sum != float("-inf"))[:, None],
        )
    else:
        sink = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        if sinks_ptr is not None:
            sink = tl.load(sinks_ptr + head, mask=is_query, other=0.0).to(tl.float32) * LOG2_E
        factor, lse = with_sink(row_max, row_sum, sink)
        out_row = sequence * out_stride_batch + (first_q + token) * out_stride_token + head * out_stride_head
        out_pointers = out_ptr + out_row[:, None] + (value_dims.to(tl.int64) * out_stride_dim)[None, :]
        tl.store(out_pointers, (acc * factor[:, None]).to(out_ptr.dtype.element_ty), mask=out_mask)
        if lse_ptr is not None:
            lse_row = sequence * lse_stride_batch + head * lse_stride_head + first_q + token
            tl.store(lse_ptr + lse_row, lse, mask=is_query)
    if flag_memory is not None:
        if tl.max(wrong, axis=0) > 0:
            tl.debug_barrier()
            if not PAGED:
                first_seen = share_end
            report_program(
                flag_memory, flag_counters, flag_call, is_first, batch_idx_ptr, used_k_ptr, table_ptr,
                page_table_stride_page, sequence, num_new, capacity, num_rows, row, first_seen, share_end, num_pages,
                cu_k_ptr is None, PAGED, PAGE,
            )  # fmt: skip
