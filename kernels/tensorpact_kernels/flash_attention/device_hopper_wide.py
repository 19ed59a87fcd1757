"""Gluon kernel for decode on Hopper with many query heads of one key head: two warpgroups share 64 query rows."""

# Gluon has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tensorpact_kernels._gluon import barrier
from tensorpact_kernels.flash_attention.device import with_sink
from tensorpact_kernels.flash_attention.device_hopper import (
    COUNTS,
    LOG2_E,
    LOWEST,
    VECTORS,
    clear_outside,
    fetch,
    load_queries,
    sequence_of,
    share_of,
)
from tensorpact_kernels.flash_attention.device_hopper_report import report_share
from tensorpact_kernels.flash_attention.device_report import is_sequence_wrong, load_numbers
from tensorpact_kernels.flash_attention.device_spans import seen_by


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=VECTORS)
def hopper_wide_decode_kernel(
    k_desc,
    v_desc,
    q_ptr,
    qv_ptr,
    out_ptr,
    lse_ptr,
    partial_acc_ptr,
    partial_lse_ptr,
    sinks_ptr,
    cu_q_ptr,
    used_q_ptr,
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
    out_stride_batch,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    page_table_stride_row,
    page_table_stride_page,
    cos_stride,
    sin_stride,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    VALUE_DIM: gl.constexpr,
    PAGED: gl.constexpr,
    PAGE: gl.constexpr,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    CHUNKED: gl.constexpr,
    SOFTCAP: gl.constexpr,
    ROTARY_DIM: gl.constexpr,
    INTERLEAVED: gl.constexpr,
    COUNTS_UP: gl.constexpr,
    SPLIT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_D: gl.constexpr,
    BLOCK_V: gl.constexpr,
    STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Attend 64 query rows to one share of slots: each warpgroup scores half of a tile and owns half of the columns."""
    KEYS: gl.constexpr = q_ptr is not None
    VALUE_QUERIES: gl.constexpr = qv_ptr is not None
    half: gl.constexpr = v_desc.dtype
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    GROUPS: gl.constexpr = num_warps // 4
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, BLOCK_N // GROUPS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, GROUPS], [16, BLOCK_V // GROUPS, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    SLOT: gl.constexpr = gl.SliceLayout(0, SCORES)
    OUT_ROW: gl.constexpr = gl.SliceLayout(1, OUTPUT)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    key_heads: gl.constexpr = HEADS // GROUP
    v_tiles = gl.allocate_shared_memory(half, [STAGES, BLOCK_N, BLOCK_V], WIDE)
    if KEYS:
        k_tiles = gl.allocate_shared_memory(half, [STAGES, BLOCK_N, BLOCK_D], WIDE)
        q_tile = gl.allocate_shared_memory(half, [BLOCK_M, BLOCK_D], WIDE)
    else:
        k_tiles = v_tiles
    if VALUE_QUERIES:
        qv_tile = gl.allocate_shared_memory(half, [BLOCK_M, BLOCK_V], WIDE)
    weights_tile = gl.allocate_shared_memory(half, [BLOCK_M, BLOCK_N], WIDE)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    fence_async_shared()

    key_head = gl.program_id(0) % key_heads
    rest = gl.program_id(0) // key_heads
    tile = rest % num_tiles
    split = (rest // num_tiles) % num_splits
    sequence = (rest // num_tiles // num_splits).to(gl.int64)
    first_q, q_length, first_slot, filled, room, row = sequence_of(
        cu_q_ptr, used_q_ptr, used_k_ptr, leftpad_ptr, batch_idx_ptr, cu_new_ptr, sequence, max_q, num_q_tokens, cached,
        num_new, num_new_tokens, capacity, num_rows,
    )  # fmt: skip
    first_row = tile * BLOCK_M
    if first_row >= q_length * GROUP:
        return
    rows = first_row + gl.arange(0, BLOCK_M, layout=ROW)
    offset = filled - q_length
    low, high = seen_by(rows // GROUP + offset, first_slot, filled, room, left, right, chunk, LEFT, RIGHT, CHUNKED)
    last_token = gl.minimum((first_row + BLOCK_M - 1) // GROUP, q_length - 1)
    begin, share_begin, share_end = share_of(
        first_row // GROUP + offset, last_token + offset, first_slot, filled, room, left, right, chunk, split,
        num_splits, LEFT, RIGHT, CHUNKED, SPLIT, BLOCK_N,
    )  # fmt: skip
    steps = (share_end - share_begin + BLOCK_N - 1) // BLOCK_N

    table_ptr = full
    if PAGED:
        table_ptr = page_table_ptr + row.to(gl.int64) * page_table_stride_row
    place = (table_ptr, page_table_stride_page, capacity, row, key_head)
    descs = (k_desc, v_desc)
    tiles = (k_tiles, v_tiles)
    for step in gl.static_range(STAGES):
        if step < steps:
            fetch(descs, tiles, full, place, step, share_begin + step * BLOCK_N, STAGES, KEYS, PAGED, PAGE)
    if flag_memory is not None:
        numbers = load_numbers(batch_idx_ptr, used_k_ptr, sequence)
        missing = gl.full([BLOCK_N], 0, gl.int32, SLOT)

    copy_rows = first_row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, COPY))
    copy_token = copy_rows // GROUP
    copy_head = key_head * GROUP + copy_rows % GROUP
    is_query = copy_token < q_length
    wide_head = copy_head.to(gl.int64)
    if KEYS:
        q_rows = sequence * q_stride_batch + (first_q + copy_token) * q_stride_token + wide_head * q_stride_head
        position = gl.zeros_like(copy_token) + cached
        if rotary_base_ptr is not None:
            position = gl.zeros_like(copy_token) + gl.load(rotary_base_ptr + sequence)
        if COUNTS_UP:
            position += copy_token
        turns = (q_ptr, q_ptr, cos_stride, sin_stride, position, table_rows)
        if ROTARY_DIM > 0:
            turns = (cos_ptr, sin_ptr, cos_stride, sin_stride, position, table_rows)
        load_queries(q_tile, q_ptr, q_rows, q_stride_dim, is_query, turns, HEAD_DIM, ROTARY_DIM, INTERLEAVED, COPY)
    if VALUE_QUERIES:
        qv_rows = sequence * qv_stride_batch + (first_q + copy_token) * qv_stride_token + wide_head * qv_stride_head
        load_queries(qv_tile, qv_ptr, qv_rows, qv_stride_dim, is_query, (), VALUE_DIM, 0, False, COPY)
    fence_async_shared()
    barrier()

    row_max = gl.full([BLOCK_M], LOWEST, gl.float32, ROW)
    sums = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, SCORES)
    empty_scores = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_M, BLOCK_V], 0.0, gl.float32, OUTPUT)
    for step in range(steps):
        start = share_begin + step * BLOCK_N
        v_tile = v_tiles.index(step % STAGES)
        slot = start + gl.arange(0, BLOCK_N, layout=SLOT)
        there = (slot >= begin) & (slot < share_end)
        if PAGED:
            pages = gl.load(table_ptr + (slot // PAGE).to(gl.int64) * page_table_stride_page, mask=there, other=-1)
            known = (pages >= 0) & (pages < num_pages)
            if flag_memory is not None:
                missing = missing | (there & ~known).to(gl.int32)
            there = there & known
        mbarrier.wait(full.index(step % STAGES), (step // STAGES) % 2)
        if KEYS:
            k_tile = k_tiles.index(step % STAGES)
            scores = warpgroup_mma(q_tile, k_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
            if VALUE_QUERIES:
                scores = warpgroup_mma(qv_tile, v_tile.permute((1, 0)), scores, is_async=True)
        else:
            scores = warpgroup_mma(qv_tile, v_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        if SOFTCAP:
            scores = 1.0 - 2.0 / (gl.exp2(scores * scale_in) + 1.0)
        wide_slot = gl.expand_dims(slot, 0)
        seen = (wide_slot >= gl.expand_dims(low, 1)) & (wide_slot <= gl.expand_dims(high, 1))
        scores = gl.where(gl.expand_dims(there, 0) & seen, scores, float("-inf"))
        new_max = gl.maximum(row_max, gl.max(scores, axis=1) * scale_out)
        correction = gl.exp2(row_max - new_max)
        weights = gl.exp2(scores * scale_out - gl.expand_dims(new_max, 1))
        sums = sums * gl.expand_dims(correction, 1) + weights
        row_max = new_max
        weights_tile.store(weights.to(half))
        if (start < begin) | (start + BLOCK_N > share_end):
            barrier()
            clear_outside(v_tile, start, begin, share_end, COPY)
        fence_async_shared()
        barrier()
        values = values * gl.expand_dims(gl.convert_layout(correction, OUT_ROW), 1)
        pending = warpgroup_mma(weights_tile, v_tile, values, is_async=True)
        values = warpgroup_mma_wait(0, deps=(pending,))
        # No warp reads the tile any more.
        barrier()
        if step + STAGES < steps:
            fetch(descs, tiles, full, place, step, start + STAGES * BLOCK_N, STAGES, KEYS, PAGED, PAGE)
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(stage))

    row_sum = gl.sum(sums, axis=1)
    token = rows // GROUP
    head = key_head * GROUP + rows % GROUP
    if SPLIT:
        factor, _ = with_sink(row_max, row_sum, float("-inf"))
        log2_sum = gl.where(row_sum == 0.0, float("-inf"), row_max + gl.log2(row_sum))
        first_number = sequence * max_q
        if cu_q_ptr is not None:
            first_number = first_q
        number = ((first_number + token) * HEADS + head) * num_splits + split
        gl.store(partial_lse_ptr + number, log2_sum, mask=token < q_length)
        line = first_row + gl.arange(0, BLOCK_M, layout=OUT_ROW)
        line_token = line // GROUP
        line_number = (first_number + line_token) * HEADS + key_head * GROUP + line % GROUP
        dims = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, OUTPUT))
        out_rows = partial_acc_ptr + (line_number * num_splits + split) * VALUE_DIM
        acc = values * gl.expand_dims(gl.convert_layout(factor, OUT_ROW), 1)
        mask = gl.expand_dims((line_token < q_length) & (steps > 0), 1) & gl.expand_dims(dims < VALUE_DIM, 0)
        gl.store(gl.expand_dims(out_rows, 1) + gl.expand_dims(dims, 0), acc, mask=mask)
    else:
        sink = gl.full([BLOCK_M], float("-inf"), gl.float32, ROW)
        if sinks_ptr is not None:
            sink = gl.load(sinks_ptr + head, mask=token < q_length, other=0.0).to(gl.float32) * LOG2_E
        factor, lse = with_sink(row_max, row_sum, sink)
        if lse_ptr is not None:
            lse_rows = sequence * lse_stride_batch + head.to(gl.int64) * lse_stride_head + first_q + token
            gl.store(lse_ptr + lse_rows, lse, mask=token < q_length)
        normalised = values * gl.expand_dims(gl.convert_layout(factor, OUT_ROW), 1)
        # Through shared memory, so that the rows leave in 16-byte pieces; the values' tiles are no longer needed.
        out_tile = v_tiles.index(0).slice(0, BLOCK_M)
        out_tile.store(normalised.to(half))
        barrier()
        out_rows = sequence * out_stride_batch + (first_q + copy_token) * out_stride_token + wide_head * out_stride_head
        out_dims = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, COPY))
        out_pointers = gl.expand_dims(out_ptr + out_rows, 1) + gl.expand_dims(out_dims.to(gl.int64) * out_stride_dim, 0)
        mask = gl.expand_dims(is_query, 1) & gl.expand_dims(out_dims < VALUE_DIM, 0)
        gl.store(out_pointers, out_tile.load(COPY), mask=mask)
    if flag_memory is not None:
        # The program of the first queries, which every sequence with a query has, speaks for the sequence. The other
        # key heads have the same pages.
        is_first = (key_head == 0) & (split == 0) & (tile == 0)
        wrong = is_first & is_sequence_wrong(numbers, batch_idx_ptr, used_k_ptr, num_new, capacity, num_rows)
        # What was in shared memory is done with when it is written for this.
        barrier()
        if wrong | ((key_head == 0) & (gl.max(missing, axis=0) > 0)):
            report_share(
                flag_memory, flag_counters, flag_call, is_first, batch_idx_ptr, used_k_ptr, page_table_ptr,
                page_table_stride_row, page_table_stride_page, sequence, num_new, capacity, num_rows, row,
                gl.maximum(begin, share_begin), share_end, num_pages, PAGED, PAGE, num_warps,
            )  # fmt: skip
