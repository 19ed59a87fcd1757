"""Gluon kernel for decode on Hopper: the copy unit fetches tiles of a cache, whose slots are the rows of a product."""

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
from triton.language.extra.cuda import gdc_launch_dependents

from tensorpact_kernels._gluon import barrier, load_tile
from tensorpact_kernels.flash_attention.device import with_sink
from tensorpact_kernels.flash_attention.device_hopper_report import report_share
from tensorpact_kernels.flash_attention.device_report import is_sequence_wrong, load_numbers
from tensorpact_kernels.flash_attention.device_spans import key_span, query_span, rotated, seen_by

LOWEST = gl.constexpr(-3.4028234663852886e38)
LOG2_E = gl.constexpr(1.4426950408889634)
ZERO_ROWS = gl.constexpr(16)

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
VECTORS = [
    "cu_q_ptr",
    "used_q_ptr",
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
@gluon.jit
def sequence_of(
    cu_q_ptr, used_q_ptr, used_k_ptr, leftpad_ptr, batch_idx_ptr, cu_new_ptr, sequence, max_q, num_q_tokens, cached,
    num_new, num_new_tokens, capacity, num_rows,
):  # fmt: skip
    """Return a sequence's first query and queries, first slot, filled slots, slots that there are, and its row."""
    first_q, q_length = query_span(cu_q_ptr, used_q_ptr, sequence, max_q, num_q_tokens)
    _, first_slot, filled = key_span(
        None, used_k_ptr, leftpad_ptr, cu_new_ptr, sequence, cached, num_new, num_new_tokens, capacity
    )  # fmt: skip
    row = sequence.to(gl.int32)
    if batch_idx_ptr is not None:
        row = gl.load(batch_idx_ptr + sequence)
    known = (row >= 0) & (row < num_rows)
    return first_q, q_length, first_slot, filled, gl.where(known, capacity, 0), gl.where(known, row, 0)


@no_type_check
@gluon.jit
def share_of(
    first_place,
    last_place,
    first_slot,
    filled,
    room,
    left,
    right,
    chunk,
    split,
    num_splits,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    CHUNKED: gl.constexpr,
    SPLIT: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    """Return the first slot that queries between two places see, and the slots of one program among several."""
    begin, _ = seen_by(first_place, first_slot, filled, room, left, right, chunk, LEFT, RIGHT, CHUNKED)
    _, end = seen_by(last_place, first_slot, filled, room, left, right, chunk, LEFT, RIGHT, CHUNKED)
    # Whatever the lengths say, no slot behind the capacity is looked up.
    end = gl.maximum(end + 1, 0)
    begin = gl.minimum(begin, end)
    share_begin = begin // BLOCK_N * BLOCK_N
    share_end = end
    if SPLIT:
        # The merge may take its places on the device now; it waits for this kernel's stores.
        gdc_launch_dependents()
        steps = (end - share_begin + BLOCK_N - 1) // BLOCK_N
        share = (steps + num_splits - 1) // num_splits * BLOCK_N
        share_begin = gl.minimum(share_begin + split * share, end)
        share_end = gl.minimum(share_begin + share, end)
    return begin, share_begin, share_end


@no_type_check
@gluon.jit
def load_queries(
    tile,
    q_ptr,
    rows,
    stride_dim,
    is_query,
    turns,
    DIM: gl.constexpr,
    ROTARY_DIM: gl.constexpr,
    INTERLEAVED: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Copy query rows to shared memory, rotated, with zeros for the rows and columns that are not there."""
    dims = gl.arange(0, tile.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    pointers = gl.expand_dims(q_ptr + rows, 1) + gl.expand_dims(dims.to(gl.int64) * stride_dim, 0)
    mask = gl.expand_dims(is_query, 1) & gl.expand_dims(dims < DIM, 0)
    q = gl.load(pointers, mask=mask, other=0.0)
    if ROTARY_DIM > 0:
        cos_ptr, sin_ptr, cos_stride, sin_stride, position, table_rows = turns
        q = rotated(
            q, pointers, mask, stride_dim, cos_ptr, sin_ptr, cos_stride, sin_stride, position, table_rows, dims,
            ROTARY_DIM, INTERLEAVED,
        )  # fmt: skip
    tile.store(q)


@no_type_check
@gluon.jit
def fetch(
    descs,
    tiles,
    full,
    place,
    step,
    start,
    STAGES: gl.constexpr,
    KEYS: gl.constexpr,
    PAGED: gl.constexpr,
    PAGE: gl.constexpr,
):
    """Have the copy unit fetch keys and values of one tile."""
    k_desc, v_desc = descs
    k_tiles, v_tiles = tiles
    table_ptr, table_stride_page, capacity, row, key_head = place
    BLOCK_N: gl.constexpr = v_tiles.shape[1]
    BOX: gl.constexpr = v_desc.block_type.shape[1]
    BOXES: gl.constexpr = BLOCK_N // BOX
    slot = step % STAGES
    ready = full.index(slot)
    if KEYS:
        mbarrier.expect(ready, BOXES * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
    else:
        mbarrier.expect(ready, BOXES * v_desc.block_type.nbytes)
    for box in gl.static_range(BOXES):
        first = start + box * BOX
        if PAGED:
            # Behind the last slot the copy is of a page that is there; what it brings is hidden.
            known = gl.minimum(first, capacity - 1)
            page = gl.load(table_ptr + (known // PAGE).to(gl.int64) * table_stride_page)
            inside = first % PAGE
        else:
            page = row
            inside = first
        if KEYS:
            load_tile(k_desc, [page, inside, key_head, 0], ready, k_tiles.index(slot).slice(box * BOX, BOX))
        load_tile(v_desc, [page, inside, key_head, 0], ready, v_tiles.index(slot).slice(box * BOX, BOX))


@no_type_check
@gluon.jit
def clear_outside(tile, start, begin, end, LAYOUT: gl.constexpr):
    """Put zeros in the place of values that no query needs: a weight of zero times a NaN is NaN."""
    BLOCK_N: gl.constexpr = tile.shape[0]
    for first in gl.static_range(0, BLOCK_N, ZERO_ROWS):
        part = tile.slice(first, ZERO_ROWS)
        slot = start + first + gl.arange(0, ZERO_ROWS, layout=gl.SliceLayout(1, LAYOUT))
        needed = gl.expand_dims((slot >= begin) & (slot < end), 1)
        rows = part.load(LAYOUT)
        part.store(gl.where(needed, rows, gl.zeros_like(rows)))


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=VECTORS)
def hopper_decode_kernel(
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
    """Attend a tile of query rows, tokens times the heads of one key head, to one share of its sequence's slots."""
    KEYS: gl.constexpr = q_ptr is not None
    VALUE_QUERIES: gl.constexpr = qv_ptr is not None
    half: gl.constexpr = v_desc.dtype
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_M, 16])
    ROW: gl.constexpr = gl.SliceLayout(0, SCORES)
    SLOT: gl.constexpr = gl.SliceLayout(1, SCORES)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    NARROW: gl.constexpr = gl.NVMMASharedLayout(2 * BLOCK_M, 16, 2)
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
    weights_tile = gl.allocate_shared_memory(half, [BLOCK_N, BLOCK_M], NARROW)
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
    sums = gl.full([BLOCK_N, BLOCK_M], 0.0, gl.float32, SCORES)
    empty_scores = gl.full([BLOCK_N, BLOCK_M], 0.0, gl.float32, SCORES)
    values = gl.full([BLOCK_V, BLOCK_M], 0.0, gl.float32, SCORES)
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
            scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
            if VALUE_QUERIES:
                scores = warpgroup_mma(v_tile, qv_tile.permute((1, 0)), scores, is_async=True)
        else:
            scores = warpgroup_mma(v_tile, qv_tile.permute((1, 0)), empty_scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        if SOFTCAP:
            scores = 1.0 - 2.0 / (gl.exp2(scores * scale_in) + 1.0)
        wide_slot = gl.expand_dims(slot, 1)
        seen = (wide_slot >= gl.expand_dims(low, 0)) & (wide_slot <= gl.expand_dims(high, 0))
        scores = gl.where(gl.expand_dims(there, 1) & seen, scores, float("-inf"))
        new_max = gl.maximum(row_max, gl.max(scores, axis=0) * scale_out)
        correction = gl.exp2(row_max - new_max)
        weights = gl.exp2(scores * scale_out - gl.expand_dims(new_max, 0))
        sums = sums * gl.expand_dims(correction, 0) + weights
        row_max = new_max
        weights_tile.store(weights.to(half))
        if (start < begin) | (start + BLOCK_N > share_end):
            barrier()
            clear_outside(v_tile, start, begin, share_end, COPY)
        fence_async_shared()
        barrier()
        values = values * gl.expand_dims(correction, 0)
        pending = warpgroup_mma(v_tile.permute((1, 0)), weights_tile, values, is_async=True)
        values = warpgroup_mma_wait(0, deps=(pending,))
        # No warp reads the tile any more.
        barrier()
        if step + STAGES < steps:
            fetch(descs, tiles, full, place, step, start + STAGES * BLOCK_N, STAGES, KEYS, PAGED, PAGE)
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(stage))

    row_sum = gl.sum(sums, axis=0)
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
        LINES: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [num_warps, 1], [1, 0])
        line = first_row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LINES))
        line_token = line // GROUP
        line_number = (first_number + line_token) * HEADS + key_head * GROUP + line % GROUP
        dims = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, LINES))
        out_rows = partial_acc_ptr + (line_number * num_splits + split) * VALUE_DIM
        acc = gl.convert_layout(gl.permute(values * gl.expand_dims(factor, 0), (1, 0)), LINES)
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
        rounded = (values * gl.expand_dims(factor, 0)).to(out_ptr.dtype.element_ty)
        out_rows = sequence * out_stride_batch + (first_q + copy_token) * out_stride_token + wide_head * out_stride_head
        out_dims = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, COPY))
        out_pointers = gl.expand_dims(out_ptr + out_rows, 1) + gl.expand_dims(out_dims.to(gl.int64) * out_stride_dim, 0)
        mask = gl.expand_dims(is_query, 1) & gl.expand_dims(out_dims < VALUE_DIM, 0)
        gl.store(out_pointers, gl.convert_layout(gl.permute(rounded, (1, 0)), COPY), mask=mask)
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
