"""Gluon kernel for attention over packed sequences on Hopper: one warp copies tiles, warpgroups of 64 rows compute."""

# Gluon has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tensorpact_kernels._gluon import copy_to_shared, load_tile, store_tile

LOWEST = gl.constexpr(-3.4028234663852886e38)
LN_2 = gl.constexpr(0.6931471805599453)
ROWS = gl.constexpr(64)
TILE_FIELDS = gl.constexpr(8)
NOTE_FIELDS = gl.constexpr(5)
ZERO_ROWS = gl.constexpr(16)


@no_type_check
@gluon.jit
def _draw_ticket(count_ptr):
    """Ask for the number of the next item; the answer may be on its way while it is not looked at."""
    lanes = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    return gl.atomic_add(count_ptr + 1 + lanes * 0, lanes * 0 + 1, mask=lanes == 0, sem="relaxed")


@no_type_check
@gluon.jit
def _item_of(ticket):
    """Return the item that a ticket stands for; every program has had its first one without."""
    lanes = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [1], [0]))
    return gl.num_programs(0) + gl.sum(gl.where(lanes == 0, ticket, 0), axis=0)


@no_type_check
@gluon.jit
def _write_number(notes, at, number):
    notes.index(at).store(gl.full([1], number, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))


@no_type_check
@gluon.jit
def _read_number(notes, at):
    return gl.max(notes.index(at).load(gl.BlockedLayout([1], [32], [4], [0])), axis=0)


@no_type_check
@gluon.jit
def _head_and_tile(item, num_tiles, team):
    """Return the query head and the place of the tile; all tiles of one team of heads come before the next team."""
    group = item // (num_tiles * team)
    inside = item % (num_tiles * team)
    return group * team + inside % team, inside // team


@no_type_check
@gluon.jit
def _key_tiles(length, first_seen, rows: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Return how many key tiles so many rows see, where the first one sees keys up to ``first_seen``."""
    seen = length
    if CAUSAL:
        seen = gl.minimum(length, gl.maximum(first_seen + rows, 0))
    return (seen + BLOCK_N - 1) // BLOCK_N


@no_type_check
@gluon.jit
def _whole_tiles(length, first_seen, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Return how many key tiles every row from one on sees whole."""
    whole = length
    if CAUSAL:
        whole = gl.minimum(length, gl.maximum(first_seen + 1, 0))
    return whole // BLOCK_N


@no_type_check
@gluon.jit
def _key_start(tile, length, BLOCK_N: gl.constexpr):
    """Return the first key of a tile: the last one is moved back so that it ends with its sequence."""
    return gl.minimum(tile * BLOCK_N, gl.maximum(length - BLOCK_N, 0))


@no_type_check
@gluon.jit
def _load_short_values(v_tile, v_ptr, v_stride_token, first_key, length, VALUE_DIM: gl.constexpr):
    """Copy a sequence shorter than a tile row by row, with zeros behind it.

    The weights of the rows behind it are zero, but zero times a NaN of the next sequence is not.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    BLOCK_N: gl.constexpr = v_tile.shape[0]
    dims = gl.arange(0, v_tile.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    for start in gl.static_range(0, BLOCK_N, ZERO_ROWS):
        row = start + gl.arange(0, ZERO_ROWS, layout=gl.SliceLayout(1, LAYOUT))
        offsets = gl.expand_dims((first_key + row).to(gl.int64) * v_stride_token, 1) + gl.expand_dims(dims, 0)
        mask = gl.expand_dims(row < length, 1) & gl.expand_dims(dims < VALUE_DIM, 0)
        copy_to_shared(v_tile.slice(start, ZERO_ROWS), v_ptr + offsets, mask=mask)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()


@no_type_check
@gluon.jit
def _produce(
    sources,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    VALUE_DIM: gl.constexpr,
    CAUSAL: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Copy each item's queries, keys and values into shared memory, as far ahead as there is room."""
    descs, values, plan, tiles, barriers, notes, note_barriers = sources
    note_full, note_empty = note_barriers
    q_desc, k_desc, v_desc = descs
    v_ptr, v_stride_token, v_stride_head = values
    tiles_ptr, count_ptr, team = plan
    q_tiles, k_tiles, v_tiles = tiles
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    BLOCK_N: gl.constexpr = k_tiles.shape[1]
    num_tiles = gl.load(count_ptr)
    num_items = num_tiles * HEADS
    filled = 0
    items = 0
    item = gl.program_id(0)
    while item < num_items:
        ticket = _draw_ticket(count_ptr)
        head, place = _head_and_tile(item, num_tiles, team)
        tile_ptr = tiles_ptr + place * TILE_FIELDS
        first_row = gl.load(tile_ptr)
        num_rows = gl.load(tile_ptr + 1)
        first_key = gl.load(tile_ptr + 2)
        length = gl.load(tile_ptr + 3)
        first_seen = gl.load(tile_ptr + 4)
        key_head = head // GROUP
        last = _key_tiles(length, first_seen, BLOCK_M, BLOCK_N, CAUSAL)
        note = (items % 2) * NOTE_FIELDS
        mbarrier.wait(note_empty.index(items % 2), (items // 2 + 1) % 2)
        _write_number(notes, note, head)
        _write_number(notes, note + 1, first_row)
        _write_number(notes, note + 2, num_rows)
        _write_number(notes, note + 3, length)
        _write_number(notes, note + 4, first_seen)
        mbarrier.arrive(note_full.index(items % 2))
        for consumer in gl.static_range(CONSUMERS):
            mbarrier.wait(q_empty.index(consumer), (items + 1) % 2)
            mbarrier.expect(q_full.index(consumer), q_desc.block_type.nbytes)
            load_tile(
                q_desc,
                [first_row + consumer * ROWS, head, 0],
                q_full.index(consumer),
                q_tiles.index(consumer),
            )
        items += 1
        # Values run one tile behind the keys, as the consumers want them.
        for step in range(last + 1):
            if step < last:
                slot = (filled + step) % STAGES
                phase = ((filled + step) // STAGES + 1) % 2
                start = first_key + _key_start(last - 1 - step, length, BLOCK_N)
                mbarrier.wait(k_empty.index(slot), phase)
                mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
                load_tile(k_desc, [start, key_head, 0], k_full.index(slot), k_tiles.index(slot))
            if step > 0:
                slot = (filled + step - 1) % STAGES
                phase = ((filled + step - 1) // STAGES + 1) % 2
                start = first_key + _key_start(last - step, length, BLOCK_N)
                mbarrier.wait(v_empty.index(slot), phase)
                if length < BLOCK_N:
                    _load_short_values(
                        v_tiles.index(slot),
                        v_ptr + key_head.to(gl.int64) * v_stride_head,
                        v_stride_token,
                        first_key,
                        length,
                        VALUE_DIM,
                    )
                    mbarrier.arrive(v_full.index(slot))
                else:
                    mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
                    load_tile(v_desc, [start, key_head, 0], v_full.index(slot), v_tiles.index(slot))
        filled += last
        item = _item_of(ticket)
    # A head that does not exist ends the work.
    mbarrier.wait(note_empty.index(items % 2), (items // 2 + 1) % 2)
    _write_number(notes, (items % 2) * NOTE_FIELDS, HEADS)
    mbarrier.arrive(note_full.index(items % 2))


@no_type_check
@gluon.jit
def _await_turn(turns, number, CONSUMER: gl.constexpr, IN_TURN: gl.constexpr):
    """Wait until the warpgroup before has issued its products: one computes weights while another multiplies."""
    if IN_TURN:
        if CONSUMER == 0:
            mbarrier.wait(turns.index(CONSUMER), (number + 1) % 2)
        else:
            mbarrier.wait(turns.index(CONSUMER), number % 2)


@no_type_check
@gluon.jit
def _pass_turn(turns, CONSUMER: gl.constexpr, IN_TURN: gl.constexpr):
    """Let the next warpgroup issue its products."""
    if IN_TURN:
        NUMBER: gl.constexpr = turns.shape[0]
        mbarrier.arrive(turns.index((CONSUMER + 1) % NUMBER))


@no_type_check
@gluon.jit
def _softmax(scores, row_max, row_sum, scale_log2):
    """Return the weights of one tile, the running maximum and sum, and the factor that corrects earlier values."""
    new_max = gl.maximum(row_max, gl.max(scores, axis=1) * scale_log2)
    correction = gl.exp2(row_max - new_max)
    weights = gl.exp2(scores * scale_log2 - gl.expand_dims(new_max, 1))
    return weights, new_max, row_sum * correction + gl.sum(weights, axis=1), correction


@no_type_check
@gluon.jit
def _hide(scores, tile, length, last_seen, CAUSAL: gl.constexpr):
    """Give minus infinity to keys that an earlier tile had, or that lie behind the sequence or the row."""
    BLOCK_N: gl.constexpr = scores.shape[1]
    columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, scores.type.layout))
    key = _key_start(tile, length, BLOCK_N) + columns
    visible = gl.expand_dims((key >= tile * BLOCK_N) & (key < length), 0)
    if CAUSAL:
        visible = visible & (gl.expand_dims(key, 0) <= gl.expand_dims(last_seen, 1))
    return gl.where(visible, scores, float("-inf"))


@no_type_check
@gluon.jit
def _fold_tiles(
    state,
    q_tile,
    tiles,
    barriers,
    filled,
    begin,
    end,
    last,
    length,
    last_seen,
    scale_log2,
    MASKED: gl.constexpr,
    CONSUMER: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    IN_TURN: gl.constexpr,
):
    """Score one key tile after the other while the values of the one before are added up."""
    weights, values, row_max, row_sum = state
    k_tiles, v_tiles = tiles
    k_full, k_empty, v_full, v_empty, turns = barriers
    half: gl.constexpr = k_tiles.dtype
    BLOCK_N: gl.constexpr = k_tiles.shape[1]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    nothing = gl.full([ROWS, BLOCK_N], 0.0, gl.float32, SCORES)
    for step in range(begin, end):
        slot = (filled + step) % STAGES
        mbarrier.wait(k_full.index(slot), ((filled + step) // STAGES) % 2)
        _await_turn(turns, filled + step, CONSUMER, IN_TURN)
        scored = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        before = (filled + step - 1) % STAGES
        mbarrier.wait(v_full.index(before), ((filled + step - 1) // STAGES) % 2)
        added = warpgroup_mma(weights, v_tiles.index(before), values, is_async=True)
        _pass_turn(turns, CONSUMER, IN_TURN)
        scores = warpgroup_mma_wait(1, deps=(scored,))
        mbarrier.arrive(k_empty.index(slot))
        if MASKED:
            scores = _hide(scores, last - 1 - step, length, last_seen, CAUSAL)
        unrounded, row_max, row_sum, correction = _softmax(scores, row_max, row_sum, scale_log2)
        values = warpgroup_mma_wait(0, deps=(added,))
        mbarrier.arrive(v_empty.index(before))
        values = values * gl.expand_dims(gl.convert_layout(correction, gl.SliceLayout(1, values.type.layout)), 1)
        weights = gl.convert_layout(unrounded.to(half), weights.type.layout)
    return weights, values, row_max, row_sum


@no_type_check
@gluon.jit
def _consume(
    shared,
    CONSUMER: gl.constexpr,
    HEADS: gl.constexpr,
    VALUE_DIM: gl.constexpr,
    CAUSAL: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    OWN_OUT: gl.constexpr,
    IN_TURN: gl.constexpr,
):
    """Attend 64 rows of each item."""
    out_desc, outputs, tiles, barriers, notes, note_barriers, turns, scale_log2 = shared
    note_full, note_empty = note_barriers
    out_ptr, out_stride_token, out_stride_head, lse_ptr, num_q_tokens = outputs
    q_tiles, k_tiles, v_tiles, out_tiles = tiles
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    half: gl.constexpr = k_tiles.dtype
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    BLOCK_N: gl.constexpr = k_tiles.shape[1]
    BLOCK_V: gl.constexpr = v_tiles.shape[2]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUTPUT, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])

    q_tile = q_tiles.index(CONSUMER)
    out_tile = out_tiles.index(CONSUMER)
    row = gl.arange(0, ROWS, layout=ROW)
    filled = 0
    items = 0
    mbarrier.wait(note_full.index(0), 0)
    head = _read_number(notes, 0)
    while head < HEADS:
        note = (items % 2) * NOTE_FIELDS
        first_row = _read_number(notes, note + 1) + CONSUMER * ROWS
        num_rows = _read_number(notes, note + 2) - CONSUMER * ROWS
        length = _read_number(notes, note + 3)
        first_seen = _read_number(notes, note + 4)
        mbarrier.arrive(note_empty.index(items % 2))
        own_seen = first_seen + CONSUMER * ROWS
        last_seen = own_seen + row
        last = _key_tiles(length, own_seen, ROWS, BLOCK_N, CAUSAL)
        whole = _whole_tiles(length, own_seen, BLOCK_N, CAUSAL)
        if CAUSAL:
            # Tiles that only other warpgroups see: the last ones of the sequence, so the first ones to come.
            others = filled + _key_tiles(length, first_seen, BLOCK_M, BLOCK_N, CAUSAL) - last
            for passing in range(filled, others):
                slot = passing % STAGES
                phase = (passing // STAGES) % 2
                mbarrier.wait(k_full.index(slot), phase)
                _await_turn(turns, passing, CONSUMER, IN_TURN)
                _pass_turn(turns, CONSUMER, IN_TURN)
                mbarrier.arrive(k_empty.index(slot))
                mbarrier.wait(v_full.index(slot), phase)
                mbarrier.arrive(v_empty.index(slot))
            filled = others

        row_max = gl.full([ROWS], LOWEST, gl.float32, ROW)
        row_sum = gl.full([ROWS], 0.0, gl.float32, ROW)
        values = gl.full([ROWS, BLOCK_V], 0.0, gl.float32, OUTPUT)
        mbarrier.wait(q_full.index(CONSUMER), items % 2)
        if last > 0:
            slot = filled % STAGES
            nothing = gl.full([ROWS, BLOCK_N], 0.0, gl.float32, SCORES)
            mbarrier.wait(k_full.index(slot), (filled // STAGES) % 2)
            keys = k_tiles.index(slot).permute((1, 0))
            _await_turn(turns, filled, CONSUMER, IN_TURN)
            scored = warpgroup_mma(q_tile, keys, nothing, use_acc=False, is_async=True)
            _pass_turn(turns, CONSUMER, IN_TURN)
            scores = warpgroup_mma_wait(0, deps=(scored,))
            mbarrier.arrive(k_empty.index(slot))
            scores = _hide(scores, last - 1, length, last_seen, CAUSAL)
            unrounded, row_max, row_sum, _correction = _softmax(scores, row_max, row_sum, scale_log2)
            weights = gl.convert_layout(unrounded.to(half), WEIGHTS)
            state = (weights, values, row_max, row_sum)
            pools = (k_tiles, v_tiles)
            rings = (k_full, k_empty, v_full, v_empty, turns)
            whole_begin = gl.maximum(last - whole, 1)
            if CAUSAL:
                state = _fold_tiles(
                    state, q_tile, pools, rings, filled, 1, whole_begin, last, length, last_seen, scale_log2,
                    True, CONSUMER, CAUSAL, STAGES, IN_TURN,
                )  # fmt: skip
            weights, values, row_max, row_sum = _fold_tiles(
                state, q_tile, pools, rings, filled, whole_begin, last, last, length, last_seen, scale_log2,
                False, CONSUMER, CAUSAL, STAGES, IN_TURN,
            )  # fmt: skip
            if OWN_OUT:
                mbarrier.arrive(q_empty.index(CONSUMER))
            filled += last
            slot = (filled - 1) % STAGES
            mbarrier.wait(v_full.index(slot), ((filled - 1) // STAGES) % 2)
            added = warpgroup_mma(weights, v_tiles.index(slot), values, is_async=True)
            values = warpgroup_mma_wait(0, deps=(added,))
            mbarrier.arrive(v_empty.index(slot))
        elif OWN_OUT:
            mbarrier.arrive(q_empty.index(CONSUMER))
        items += 1

        # Only an exact zero means "no key"; a NaN must stay visible.
        empty = row_sum == 0.0
        denominator = gl.where(empty, 1.0, row_sum)
        if lse_ptr is not None:
            lse = gl.where(empty, float("-inf"), row_max * LN_2 + gl.log(denominator))
            lse_row = lse_ptr + head.to(gl.int64) * num_q_tokens + first_row
            gl.store(lse_row + row, lse, mask=row < num_rows)
        factor = gl.convert_layout(gl.where(empty, 0.0, 1.0 / denominator), gl.SliceLayout(1, OUTPUT))
        result = (values * gl.expand_dims(factor, 1)).to(half)
        tma.store_wait(0)
        out_tile.store(result)
        fence_async_shared()
        if num_rows >= ROWS:
            store_tile(out_desc, [first_row, head, 0], out_tile)
        else:
            copy_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, COPY))
            copy_dim = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, COPY))
            rows = out_ptr + (first_row + copy_row).to(gl.int64) * out_stride_token
            pointers = gl.expand_dims(rows + head.to(gl.int64) * out_stride_head, 1) + gl.expand_dims(copy_dim, 0)
            mask = gl.expand_dims(copy_row < num_rows, 1) & gl.expand_dims(copy_dim < VALUE_DIM, 0)
            gl.store(pointers, out_tile.load(COPY), mask=mask)
        if not OWN_OUT:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(CONSUMER))
        mbarrier.wait(note_full.index(items % 2), (items // 2) % 2)
        head = _read_number(notes, (items % 2) * NOTE_FIELDS)
    tma.store_wait(0)


@no_type_check
@gluon.jit(do_not_specialize=["num_q_tokens", "team"], do_not_specialize_on_alignment=["lse_ptr"])
def hopper_attention_kernel(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    v_ptr,
    out_ptr,
    lse_ptr,
    tiles_ptr,
    count_ptr,
    scale_log2,
    num_q_tokens,
    team,
    v_stride_token,
    v_stride_head,
    out_stride_token,
    out_stride_head,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    VALUE_DIM: gl.constexpr,
    BLOCK_N: gl.constexpr,
    CAUSAL: gl.constexpr,
    CONSUMERS: gl.constexpr,
    STAGES: gl.constexpr,
    OWN_OUT: gl.constexpr,
    IN_TURN: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Take query tiles in turn, with one warpgroup for each 64 of their rows and one warp that copies."""
    half: gl.constexpr = q_desc.dtype
    BLOCK_D: gl.constexpr = q_desc.block_type.shape[2]
    BLOCK_V: gl.constexpr = v_desc.block_type.shape[2]
    WIDE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_tiles = gl.allocate_shared_memory(half, [CONSUMERS, ROWS, BLOCK_D], WIDE)
    k_tiles = gl.allocate_shared_memory(half, [STAGES, BLOCK_N, BLOCK_D], WIDE)
    v_tiles = gl.allocate_shared_memory(half, [STAGES, BLOCK_N, BLOCK_V], WIDE)
    if OWN_OUT:
        out_tiles = gl.allocate_shared_memory(half, [CONSUMERS, ROWS, BLOCK_V], WIDE)
    else:
        out_tiles = q_tiles
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    q_empty = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    notes = gl.allocate_shared_memory(gl.int32, [2 * NOTE_FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    note_full = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    note_empty = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for note in gl.static_range(2):
        mbarrier.init(note_full.index(note), count=1)
        mbarrier.init(note_empty.index(note), count=CONSUMERS)
    for consumer in gl.static_range(CONSUMERS):
        mbarrier.init(turns.index(consumer), count=1)
        mbarrier.init(q_full.index(consumer), count=1)
        mbarrier.init(q_empty.index(consumer), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=CONSUMERS)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(v_empty.index(slot), count=CONSUMERS)
    fence_async_shared()

    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
    plan = (tiles_ptr, count_ptr, team)
    tiles = (q_tiles, k_tiles, v_tiles, out_tiles)
    outputs = (out_ptr, out_stride_token * 8, out_stride_head * 8, lse_ptr, num_q_tokens)
    # Tuples of constants are written where they are used: a variable would turn the constants into tensors.
    # Strides come in pieces of 16 bytes, so that the compiler knows them to be whole ones.
    values = (v_ptr, v_stride_token * 8, v_stride_head * 8)
    note_barriers = (note_full, note_empty)
    descs = (q_desc, k_desc, v_desc)
    sources = (descs, values, plan, (q_tiles, k_tiles, v_tiles), barriers, notes, note_barriers)
    shared = (out_desc, outputs, tiles, barriers, notes, note_barriers, turns, scale_log2)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (shared, 0, HEADS, VALUE_DIM, CAUSAL, CONSUMERS, STAGES, OWN_OUT, IN_TURN)),
                (_consume, (shared, 1, HEADS, VALUE_DIM, CAUSAL, CONSUMERS, STAGES, OWN_OUT, IN_TURN)),
                (_produce, (sources, HEADS, GROUP, VALUE_DIM, CAUSAL, CONSUMERS, STAGES)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (shared, 0, HEADS, VALUE_DIM, CAUSAL, CONSUMERS, STAGES, OWN_OUT, IN_TURN)),
                (_consume, (shared, 1, HEADS, VALUE_DIM, CAUSAL, CONSUMERS, STAGES, OWN_OUT, IN_TURN)),
                (_consume, (shared, 2, HEADS, VALUE_DIM, CAUSAL, CONSUMERS, STAGES, OWN_OUT, IN_TURN)),
                (_produce, (sources, HEADS, GROUP, VALUE_DIM, CAUSAL, CONSUMERS, STAGES)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
