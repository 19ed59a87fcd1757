"""Triton kernels for attention over packed sequences: the plan of query tiles, and the attention of one tile."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from tensorpact.reporting.device import tell

LOWEST = tl.constexpr(-3.4028234663852886e38)
LN_2 = tl.constexpr(0.6931471805599453)

# A tile is eight int32: first query row, rows, first key, keys, last key that the first row sees, and room.
TILE_FIELDS = tl.constexpr(8)

# Sizes change from call to call; specialising on them would compile a kernel for each combination.
COUNTS = ["num_q_tokens", "num_k_tokens", "num_sequences", "capacity", "flag_call"]

# Places of the checks that a launch names: where boundaries start, their order, and where they end; keys come last.
KEYS = tl.constexpr(3)


@no_type_check
@triton.jit
def _bounds(cu_ptr, cu_stride, segment, num_sequences, num_tokens):
    """Return where a segment begins and ends: 0 is the rows before the first boundary, the last those behind all."""
    before = tl.minimum(tl.maximum(segment - 1, 0), num_sequences).to(tl.int64)
    after = tl.minimum(segment, num_sequences).to(tl.int64)
    begin = tl.load(cu_ptr + before * cu_stride).to(tl.int64)
    end = tl.load(cu_ptr + after * cu_stride).to(tl.int64)
    begin = tl.where(segment == 0, 0, begin)
    end = tl.where(segment > num_sequences, num_tokens, end)
    begin = tl.minimum(tl.maximum(begin, 0), num_tokens)
    return begin.to(tl.int32), tl.maximum(begin, tl.minimum(end, num_tokens)).to(tl.int32)


@no_type_check
@triton.jit
def _boundary(cu_ptr, cu_stride, own, num_sequences, num_tokens):
    """Return the boundary behind a segment, what it must be or not be below, and whether it is wrong.

    The first is 0, the last the number of tokens, none is below another.
    """
    place = tl.minimum(own, num_sequences)
    before = tl.maximum(place - 1, 0)
    value = tl.load(cu_ptr + place.to(tl.int64) * cu_stride).to(tl.int64)
    earlier = tl.load(cu_ptr + before.to(tl.int64) * cu_stride).to(tl.int64)
    starts = own == 0
    ends = own > num_sequences
    limit = tl.where(starts, 0, tl.where(ends, num_tokens, earlier))
    return value, limit, tl.where(starts | ends, value != limit, value < earlier)


@no_type_check
@triton.jit
def _report_boundary(flag_memory, flag_counters, flag_call, check, cu_ptr, cu_stride, own, num_sequences, num_tokens):
    value, limit, wrong = _boundary(cu_ptr, cu_stride, own, num_sequences, num_tokens)
    if wrong:
        kind = tl.where(own == 0, 0, tl.where(own > num_sequences, 2, 1))
        place = tl.minimum(own, num_sequences)
        tell(flag_memory, flag_counters, flag_call, kind + check, place, value, limit)


@no_type_check
@triton.jit(noinline=True)
def _report_boundaries(
    flag_memory,
    flag_counters,
    flag_call,
    cu_q_ptr,
    cu_q_stride,
    cu_k_ptr,
    cu_k_stride,
    own,
    num_sequences,
    num_q_tokens,
    num_k_tokens,
):
    """Report the boundaries behind a segment that are wrong; code that lies behind the kernel's."""
    _report_boundary(
        flag_memory, flag_counters, flag_call, 0, cu_q_ptr, cu_q_stride, own, num_sequences, num_q_tokens
    )  # fmt: skip
    _report_boundary(
        flag_memory, flag_counters, flag_call, KEYS, cu_k_ptr, cu_k_stride, own, num_sequences, num_k_tokens
    )  # fmt: skip


@no_type_check
@triton.jit
def _lengths(
    cu_q_ptr, cu_q_stride, cu_k_ptr, cu_k_stride, segment, num_sequences, num_q_tokens, num_k_tokens
):  # fmt: skip
    """Return the bounds of a segment's queries, its first key and its keys; rows outside every sequence have none."""
    outside = (segment == 0) | (segment > num_sequences)
    q_begin, q_end = _bounds(cu_q_ptr, cu_q_stride, segment, num_sequences, num_q_tokens)
    k_begin, k_end = _bounds(cu_k_ptr, cu_k_stride, segment, num_sequences, num_k_tokens)
    return (
        q_begin,
        tl.where(segment > num_sequences + 1, q_begin, q_end),
        k_begin,
        tl.where(outside, 0, k_end - k_begin),
    )


@no_type_check
@triton.jit
def _seen_by_tile(tile, q_length, k_length, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return how many keys the rows of a tile see, at most."""
    if CAUSAL:
        # Divided before it is multiplied: the rounded-up length of a sequence near 2**31 does not fit.
        last = tl.minimum(q_length - tile * BLOCK_M, BLOCK_M) + tile * BLOCK_M
        return tl.maximum(tl.minimum(k_length, last + k_length - q_length), 0)
    return k_length + tile * 0


@no_type_check
@triton.jit
def _tiles_above(seen, q_length, k_length, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return how many tiles of a segment see more keys than this."""
    tiles = tl.cdiv(q_length, BLOCK_M)
    if CAUSAL:
        # Tile m, unless it is the last, sees (m + 1) * BLOCK_M + shift keys, and the last one all of them.
        room = seen - (k_length - q_length)
        below = tl.where(room < 0, 0, tl.minimum(room // BLOCK_M, tiles - 1))
        above = tl.where(k_length > seen, tiles - tl.maximum(below, 0), 0)
    else:
        above = tl.where(k_length > seen, tiles, 0)
    return tl.where(seen < 0, tiles, above)


@no_type_check
@triton.jit
def _store_tiles(tiles_ptr, place, q_begin, q_length, k_begin, k_length, tile, mask, BLOCK_M: tl.constexpr):
    """Write tiles of one segment to their places."""
    fields = tiles_ptr + place.to(tl.int64) * TILE_FIELDS
    tl.store(fields, q_begin + tile * BLOCK_M, mask=mask)
    tl.store(fields + 1, tl.minimum(q_length - tile * BLOCK_M, BLOCK_M), mask=mask)
    tl.store(fields + 2, tl.zeros_like(tile) + k_begin, mask=mask)
    tl.store(fields + 3, tl.zeros_like(tile) + k_length, mask=mask)
    tl.store(fields + 4, tile * BLOCK_M + k_length - q_length, mask=mask)


@no_type_check
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=["cu_q_ptr", "cu_k_ptr"])
def plan_kernel(
    cu_q_ptr,
    cu_k_ptr,
    tiles_ptr,
    count_ptr,
    flag_memory,
    flag_counters,
    flag_call,
    num_q_tokens,
    num_k_tokens,
    num_sequences,
    capacity,
    cu_q_stride,
    cu_k_stride,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """List the query tiles of one segment at their places among all tiles, those that see the most keys first.

    Boundaries that run backwards would give rows to several sequences, and more tiles than there is room for. Every
    row then has a tile without keys, and no other.
    """
    own = tl.program_id(0)
    q_begin, q_end, k_begin, k_length = _lengths(
        cu_q_ptr, cu_q_stride, cu_k_ptr, cu_k_stride, own, num_sequences, num_q_tokens, num_k_tokens
    )  # fmt: skip
    if flag_memory is not None:
        # The same numbers again, which are there by now.
        wrong = _boundary(cu_q_ptr, cu_q_stride, own, num_sequences, num_q_tokens)[2]
        wrong = wrong | _boundary(cu_k_ptr, cu_k_stride, own, num_sequences, num_k_tokens)[2]
    q_length = q_end - q_begin
    own_tiles = tl.cdiv(q_length, BLOCK_M)
    segments = num_sequences + 2
    if own == 0:
        total = 0
        rows = tl.zeros((BLOCK_S,), dtype=tl.int64)
        for start in range(0, segments, BLOCK_S):
            other = start + tl.arange(0, BLOCK_S)
            begin, end, _, _ = _lengths(
                cu_q_ptr, cu_q_stride, cu_k_ptr, cu_k_stride, other, num_sequences, num_q_tokens, num_k_tokens
            )  # fmt: skip
            total += tl.sum(tl.cdiv(end - begin, BLOCK_M), axis=0)
            rows += end - begin
        if tl.sum(rows, axis=0) > num_q_tokens:
            total = tl.cdiv(num_q_tokens, BLOCK_M)
            for first in range(0, total, BLOCK_T):
                tile = first + tl.arange(0, BLOCK_T)
                length = num_q_tokens + tile * 0
                _store_tiles(tiles_ptr, tile, tile * 0, length, tile * 0, tile * 0, tile, tile < total, BLOCK_M)
        tl.store(count_ptr, total)
        tl.store(count_ptr + 1, 0)
    for first in range(0, own_tiles, BLOCK_T):
        tile = first + tl.arange(0, BLOCK_T)
        seen = _seen_by_tile(tile, q_length, k_length, CAUSAL, BLOCK_M)
        # Within the segment, tiles that see the same stand in order; they are the blind ones, or all.
        place = tl.where(seen == 0, tile, 0) if CAUSAL else tile
        rows = tl.zeros((BLOCK_S,), dtype=tl.int64)
        for start in range(0, segments, BLOCK_S):
            other = start + tl.arange(0, BLOCK_S)
            begin, end, _, length = _lengths(
                cu_q_ptr, cu_q_stride, cu_k_ptr, cu_k_stride, other, num_sequences, num_q_tokens, num_k_tokens
            )  # fmt: skip
            other_length = (end - begin)[None, :]
            above = _tiles_above(seen[:, None], other_length, length[None, :], CAUSAL, BLOCK_M)
            level = _tiles_above(seen[:, None] - 1, other_length, length[None, :], CAUSAL, BLOCK_M) - above
            place += tl.sum(above + tl.where((other < own)[None, :], level, 0), axis=1)
            rows += end - begin
        listed = tl.where(tl.sum(rows, axis=0) == num_q_tokens, own_tiles, 0)
        mask = (tile < listed) & (place < capacity)
        _store_tiles(tiles_ptr, place, q_begin, q_length, k_begin, k_length, tile, mask, BLOCK_M)
    if flag_memory is not None:
        if wrong:
            _report_boundaries(
                flag_memory, flag_counters, flag_call, cu_q_ptr, cu_q_stride, cu_k_ptr, cu_k_stride, own,
                num_sequences, num_q_tokens, num_k_tokens,
            )  # fmt: skip


@no_type_check
@triton.jit
def _fold_keys(
    q,
    acc,
    row_max,
    row_sum,
    k_ptr,
    k_stride_token,
    k_stride_dim,
    v_ptr,
    v_stride_token,
    v_stride_dim,
    begin,
    end,
    length,
    last_seen,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Fold the keys from ``begin`` to ``end`` into the running softmax of one query tile."""
    half: tl.constexpr = q.dtype
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_V)
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK_N)
        row = key.to(tl.int64)
        k_pointers = k_ptr + (row * k_stride_token)[None, :] + (dims.to(tl.int64) * k_stride_dim)[:, None]
        v_pointers = v_ptr + (row * v_stride_token)[:, None] + (value_dims.to(tl.int64) * v_stride_dim)[None, :]
        k_mask = (dims < HEAD_DIM)[:, None]
        v_mask = (value_dims < VALUE_DIM)[None, :]
        if MASKED:
            k_mask = k_mask & (key < length)[None, :]
            v_mask = v_mask & (key < length)[:, None]
        if MASKED or HEAD_DIM != BLOCK_D:
            k = tl.load(k_pointers, mask=k_mask, other=0.0)
        else:
            k = tl.load(k_pointers)
        if UPCAST:
            scores = tl.dot(q.to(tl.float32), k.to(tl.float32), input_precision="ieee")
        else:
            # Three products in the short format of the matrix units come to the accuracy of float32.
            scores = tl.dot(q, k, input_precision="tf32x3")
        if MASKED:
            visible = (key < length)[None, :]
            if CAUSAL:
                visible = visible & (key[None, :] <= last_seen[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale_log2)
        correction = tl.exp2(row_max - new_max)
        weights = tl.exp2(scores * scale_log2 - new_max[:, None])
        row_sum = row_sum * correction + tl.sum(weights, axis=1)
        acc = acc * correction[:, None]
        if MASKED or VALUE_DIM != BLOCK_V:
            v = tl.load(v_pointers, mask=v_mask, other=0.0)
        else:
            v = tl.load(v_pointers)
        if UPCAST:
            acc = tl.dot(weights.to(half).to(tl.float32), v.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(weights.to(half), v, acc, input_precision="tf32x3")
        row_max = new_max
    return acc, row_max, row_sum


@no_type_check
@triton.jit(do_not_specialize=COUNTS)
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    tiles_ptr,
    count_ptr,
    scale_log2,
    num_q_tokens,
    q_stride_token,
    q_stride_head,
    q_stride_dim,
    k_stride_token,
    k_stride_head,
    k_stride_dim,
    v_stride_token,
    v_stride_head,
    v_stride_dim,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CAUSAL: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Attend one query tile of one head to the keys of its sequence."""
    # torch.compile hands numbers over in float64.
    scale_log2 = tl.cast(scale_log2, tl.float32)
    number = tl.program_id(0) // HEADS
    if number >= tl.load(count_ptr):
        return
    # Heads of one tile are neighbours in launch order, so that all of a group but the first find the keys in L2.
    head = (tl.program_id(0) % HEADS).to(tl.int64)
    tile_ptr = tiles_ptr + number.to(tl.int64) * TILE_FIELDS
    first_row = tl.load(tile_ptr).to(tl.int64)
    num_rows = tl.load(tile_ptr + 1)
    first_key = tl.load(tile_ptr + 2).to(tl.int64)
    length = tl.load(tile_ptr + 3)
    first_seen = tl.load(tile_ptr + 4)

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    value_dims = tl.arange(0, BLOCK_V)
    q_offsets = (first_row + rows)[:, None] * q_stride_token + dims.to(tl.int64)[None, :] * q_stride_dim
    q_mask = (rows < num_rows)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + head * q_stride_head + q_offsets, mask=q_mask, other=0.0)
    k_head_ptr = k_ptr + (head // GROUP) * k_stride_head + first_key * k_stride_token
    v_head_ptr = v_ptr + (head // GROUP) * v_stride_head + first_key * v_stride_token

    seen = length
    whole = length // BLOCK_N * BLOCK_N
    if CAUSAL:
        seen = tl.minimum(length, tl.maximum(first_seen + num_rows, 0))
        whole = tl.minimum(whole, tl.maximum(first_seen + 1, 0) // BLOCK_N * BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_V), dtype=tl.float32)
    row_max = tl.full((BLOCK_M,), LOWEST, dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc, row_max, row_sum = _fold_keys(
        q, acc, row_max, row_sum,
        k_head_ptr, k_stride_token, k_stride_dim, v_head_ptr, v_stride_token, v_stride_dim,
        0, whole, length, first_seen + rows, scale_log2,
        HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, BLOCK_N, False, CAUSAL, UPCAST, STAGES,
    )  # fmt: skip
    acc, row_max, row_sum = _fold_keys(
        q, acc, row_max, row_sum,
        k_head_ptr, k_stride_token, k_stride_dim, v_head_ptr, v_stride_token, v_stride_dim,
        whole, seen, length, first_seen + rows, scale_log2,
        HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, BLOCK_N, True, CAUSAL, UPCAST, STAGES,
    )  # fmt: skip

    # Only an exact zero means "no key"; a NaN must stay visible.
    empty = row_sum == 0.0
    denominator = tl.where(empty, 1.0, row_sum)
    out = acc * tl.where(empty, 0.0, 1.0 / denominator)[:, None]
    out_offsets = (first_row + rows)[:, None] * out_stride_token + value_dims.to(tl.int64)[None, :] * out_stride_dim
    out_mask = (rows < num_rows)[:, None] & (value_dims < VALUE_DIM)[None, :]
    tl.store(out_ptr + head * out_stride_head + out_offsets, out.to(q.dtype), mask=out_mask)
    if lse_ptr is not None:
        lse = tl.where(empty, float("-inf"), row_max * LN_2 + tl.log(denominator))
        tl.store(lse_ptr + head * num_q_tokens + first_row + rows, lse, mask=rows < num_rows)
