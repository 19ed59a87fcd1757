"""Gluon kernel of the same decode: the state of a head waits whole in shared memory while the ring is summed up."""

# Gluon has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from tensorpact_kernels._gluon import copy_to_shared
from tensorpact_kernels.replayssm.device import report_row

COUNTS = ["num_slots", "flag_call"]
STEPS = ["indices_ptr", "write_pos_ptr", "force_flush_ptr"]

SOFTPLUS_IS_LINEAR = gl.constexpr(20.0)
NORM_EPSILON = gl.constexpr(1e-6)
# Bits of a float32 that a tf32 keeps.
TF32_BITS = gl.constexpr(-8192)


@no_type_check
@gluon.jit
def _add(a, b):
    return a + b


@no_type_check
@gluon.jit
def _unit(x):
    return x / gl.sqrt(gl.sum(x * x, axis=0) + NORM_EPSILON)


@no_type_check
@gluon.jit
def _log1p_exp(x):
    e = gl.exp(gl.minimum(x, SOFTPLUS_IS_LINEAR))
    u = 1.0 + e
    small = gl.where(u == 1.0, e, gl.log(u) * (e / gl.where(u == 1.0, 1.0, u - 1.0)))
    return gl.where(x > SOFTPLUS_IS_LINEAR, x, small)


@no_type_check
@gluon.jit
def _halves(x):
    """Split float32 into two tf32 whose sum it is, but for its last bits."""
    high = (x.to(gl.int32, bitcast=True) & TF32_BITS).to(gl.float32, bitcast=True)
    return high, x - high


@no_type_check
@gluon.jit
def _log_decay(gate, rate, lower_bound, BOUNDED: gl.constexpr):
    if BOUNDED:
        return lower_bound / (1.0 + gl.exp(-rate * gate))
    return -rate * _log1p_exp(gate)


@no_type_check
@gluon.jit
def _by_step(ring_ptr, step, stride_l, channel, stride_k, count):
    """Load the ring's rows ``step`` below ``count``, steps first; other rows are zero."""
    pointers = ring_ptr + gl.expand_dims(step.to(gl.int64) * stride_l, 1) + gl.expand_dims(channel * stride_k, 0)
    return gl.load(pointers, mask=gl.expand_dims(step < count, 1), other=0.0)


@no_type_check
@gluon.jit
def _by_row(ring_ptr, row, stride_v, step, stride_l, count):
    """Load the same, rows of the state first."""
    pointers = ring_ptr + gl.expand_dims(row * stride_v, 1) + gl.expand_dims(step.to(gl.int64) * stride_l, 0)
    return gl.load(pointers, mask=gl.expand_dims(step < count, 0), other=0.0)


@no_type_check
@gluon.jit
def _write_back(
    state_ptr,
    state_stride_v,
    first_row,
    tile,
    d,
    keep_column,
    key_column,
    decayed,
    d_ptr,
    d_stride_v,
    d_stride_l,
    written,
    BLOCK_L: gl.constexpr,
    RING: gl.constexpr,
    PRODUCT: gl.constexpr,
):
    """Decay a tile of the checkpoint, add the ring's tokens and the new one, and store it."""
    TILE: gl.constexpr = tile.shape[0]
    K: gl.constexpr = tile.shape[1]
    CHUNK: gl.constexpr = 32
    ROW: gl.constexpr = gl.SliceLayout(1, PRODUCT)
    COLUMN: gl.constexpr = gl.SliceLayout(0, PRODUCT)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, PRODUCT, 1)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, PRODUCT, 1)
    update = gl.expand_dims(gl.convert_layout(d, ROW), 1)
    if RING:
        row = first_row + gl.arange(0, TILE, layout=gl.SliceLayout(1, LEFT))
        step = BLOCK_L - 1 - gl.arange(0, BLOCK_L, layout=gl.SliceLayout(0, LEFT))
        left_high, left_low = _halves(_by_row(d_ptr, row, d_stride_v, step, d_stride_l, written).to(gl.float32))
    rows_ptr = state_ptr + gl.expand_dims((first_row + gl.arange(0, TILE, layout=ROW)) * state_stride_v, 1)
    for chunk in gl.static_range(K // CHUNK):
        kept = gl.expand_dims(keep_column.slice(chunk * CHUNK, CHUNK).load(COLUMN), 0)
        keyed = gl.expand_dims(key_column.slice(chunk * CHUNK, CHUNK).load(COLUMN), 0)
        state = tile.slice(chunk * CHUNK, CHUNK, dim=1).load(PRODUCT).to(gl.float32)
        state = state * kept + update * keyed
        if RING:
            high, low = _halves(decayed.slice(chunk * CHUNK, CHUNK, dim=1).load(RIGHT))
            state = mma_v2(left_high, high, state, input_precision="tf32")
            state = mma_v2(left_high, low, state, input_precision="tf32")
            # Halves are exact in tf32 already; their lower half is zero.
            if d_ptr.dtype.element_ty == gl.float32:
                state = mma_v2(left_low, high, state, input_precision="tf32")
        columns = gl.expand_dims(chunk * CHUNK + gl.arange(0, CHUNK, layout=COLUMN), 0)
        gl.store(rows_ptr + columns, state.to(tile.dtype))


@no_type_check
@gluon.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=STEPS)
def kda_staged_kernel(
    qkv_ptr,
    a_ptr,
    b_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    d_ptr,
    k_ptr,
    g_ptr,
    out_ptr,
    indices_ptr,
    write_pos_ptr,
    force_flush_ptr,
    scale,
    lower_bound,
    flag_memory,
    flag_counters,
    flag_call,
    num_slots,
    HV,
    qkv_stride_row,
    a_stride_row,
    b_stride_row,
    state_stride_slot,
    state_stride_head,
    state_stride_v,
    d_stride_slot,
    d_stride_head,
    d_stride_l,
    d_stride_v,
    k_stride_slot,
    k_stride_head,
    k_stride_l,
    k_stride_k,
    g_stride_slot,
    g_stride_head,
    g_stride_l,
    g_stride_k,
    indices_stride,
    write_pos_stride,
    force_flush_stride,
    GROUP: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    L: gl.constexpr,
    BLOCK_L: gl.constexpr,
    TILE: gl.constexpr,
    TILES: gl.constexpr,
    PARTS: gl.constexpr,
    NORMALISE: gl.constexpr,
    BOUNDED: gl.constexpr,
    ROUND_BETA: gl.constexpr,
    RING: gl.constexpr,
    num_warps: gl.constexpr,
):
    """One program: one row of the batch, one value head, ``TILES * TILE`` rows of its state."""
    dtype: gl.constexpr = state_ptr.dtype.element_ty
    VECTOR: gl.constexpr = 128 // dtype.primitive_bitwidth
    SIZE: gl.constexpr = TILES * TILE
    # Eight lanes share a row: enough for whole cache lines, few enough that a sum over a row takes three shuffles.
    ROWS: gl.constexpr = gl.BlockedLayout([1, VECTOR], [4, 8], [num_warps, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, ROWS)
    COLUMN: gl.constexpr = gl.SliceLayout(0, ROWS)
    # Each warp has the whole vector, so that its sums need no other warp.
    WHOLE: gl.constexpr = gl.BlockedLayout([K // 32], [32], [num_warps], [0])
    # A thread has all steps of a channel or of a row, so that sums over steps stay within it.
    CHANNELS: gl.constexpr = gl.BlockedLayout([BLOCK_L, 1], [1, 32], [1, num_warps], [0, 1])
    CHANNEL: gl.constexpr = gl.SliceLayout(0, CHANNELS)
    REPLAY: gl.constexpr = gl.BlockedLayout([1, BLOCK_L], [32, 1], [num_warps, 1], [0, 1])
    REPLAY_STEP: gl.constexpr = gl.SliceLayout(0, REPLAY)
    STEPS: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [num_warps, 1], [1, 0])
    STEPS_CHANNEL: gl.constexpr = gl.SliceLayout(0, STEPS)
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [num_warps, 1], [16, 8])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])

    pid = gl.program_id(0)
    part = (pid % PARTS).to(gl.int64)
    hv = (pid // PARTS % HV).to(gl.int64)
    row = (pid // PARTS // HV).to(gl.int64)
    h = hv // GROUP
    heads = HV // GROUP
    first_row = part * SIZE
    out_ptr += (row * HV + hv) * V + first_row
    v = gl.arange(0, TILE, layout=ROW)

    slot = gl.load(indices_ptr + row * indices_stride).to(gl.int64)
    live = (slot >= 0) & (slot < num_slots)
    written = 0
    flush = True
    if RING:
        written = gl.load(write_pos_ptr + row * write_pos_stride)
        live = live & (written >= 0) & (written < L)
        flush = written == L - 1
        if force_flush_ptr is not None:
            flush = flush | (gl.load(force_flush_ptr + row * force_flush_stride) != 0)
    if not live:
        if flag_memory is not None:
            # A negative slot is what marks padding; of a row's programs one reports.
            if (slot >= 0) & (hv == 0) & (part == 0):
                report_row(flag_memory, flag_counters, flag_call, row, slot, num_slots, written, L)
        for t in gl.static_range(TILES):
            gl.store(out_ptr + t * TILE + v, gl.full([TILE], 0.0, out_ptr.dtype.element_ty, ROW))
        return

    # Everything that must come from memory is asked for before the first of it is used.
    states = gl.allocate_shared_memory(dtype, [TILES, TILE, K], gl.SwizzledSharedLayout(VECTOR, 1, 8, [1, 0]))
    state_ptr += slot * state_stride_slot + hv * state_stride_head
    k = gl.arange(0, K, layout=COLUMN)
    for t in gl.static_range(TILES):
        tile_row = gl.expand_dims(first_row + t * TILE + v, 1)
        copy_to_shared(states.index(t), state_ptr + tile_row * state_stride_v + gl.expand_dims(k, 0))
        async_copy.commit_group()
    c = gl.arange(0, K, layout=CHANNEL)
    whole = gl.arange(0, K, layout=WHOLE)
    qkv_ptr += row * qkv_stride_row
    query = gl.load(qkv_ptr + h * K + whole).to(gl.float32)
    key = gl.load(qkv_ptr + (heads + h) * K + whole).to(gl.float32)
    gate = gl.load(a_ptr + row * a_stride_row + hv * K + c).to(gl.float32)
    gate += gl.load(dt_bias_ptr + hv * K + c).to(gl.float32)
    rate = gl.load(a_log_ptr + hv).to(gl.float32)
    raw = gl.load(b_ptr + row * b_stride_row + hv)
    if RING:
        d_ptr += slot * d_stride_slot + hv * d_stride_head
        k_ptr += slot * k_stride_slot + h * k_stride_head
        g_ptr += slot * g_stride_slot + hv * g_stride_head
        # Steps run backwards, so that a forward scan sums what lies behind each of them.
        j = BLOCK_L - 1 - gl.arange(0, BLOCK_L, layout=gl.SliceLayout(1, CHANNELS))
        channel = c.to(gl.int64)
        # Row j is decayed by the rows behind it, so the sums start one row later than the keys.
        later = _by_step(g_ptr, j + 1, g_stride_l, channel, g_stride_k, written)
        first = gl.load(g_ptr + channel * g_stride_k, mask=c * 0 < written, other=0.0)
        keys = _by_step(k_ptr, j, k_stride_l, channel, k_stride_k, written)
        replay_row = first_row + gl.arange(0, SIZE, layout=gl.SliceLayout(1, REPLAY))
        replay_step = BLOCK_L - 1 - gl.arange(0, BLOCK_L, layout=REPLAY_STEP)
        values = _by_row(d_ptr, replay_row, d_stride_v, replay_step, d_stride_l, written)

    if NORMALISE:
        query = _unit(query)
        key = _unit(key)
    query *= scale
    key_query = gl.sum(key * query, axis=0)
    log_decay = _log_decay(gate, gl.exp(rate), lower_bound, BOUNDED)
    beta = 1.0 / (1.0 + gl.exp(-raw.to(gl.float32)))
    if ROUND_BETA:
        beta = beta.to(raw.dtype).to(gl.float32)

    keep_column = gl.allocate_shared_memory(gl.float32, [K], FLAT)
    key_column = gl.allocate_shared_memory(gl.float32, [K], FLAT)
    query_column = gl.allocate_shared_memory(gl.float32, [K], FLAT)
    key_column.store(key)
    query_column.store(query)
    decayed = gl.allocate_shared_memory(
        gl.float32, [BLOCK_L if RING else 1, K], gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    )
    if RING:
        keep_column.store(gl.exp(log_decay + (first + gl.sum(later, axis=0))))
        since = gl.associative_scan(later, 0, _add) + gl.expand_dims(log_decay, 0)
        decayed.store(keys.to(gl.float32) * gl.exp(since))
        by_step = decayed.load(STEPS)
        ring_d = gl.sum(by_step * gl.expand_dims(key_column.load(STEPS_CHANNEL), 0), axis=1)
        ring_o = gl.sum(by_step * gl.expand_dims(query_column.load(STEPS_CHANNEL), 0), axis=1)
        ring_d = gl.expand_dims(gl.convert_layout(ring_d, REPLAY_STEP), 0)
        ring_o = gl.expand_dims(gl.convert_layout(ring_o, REPLAY_STEP), 0)
        replayed_d = gl.allocate_shared_memory(gl.float32, [SIZE], FLAT)
        replayed_o = gl.allocate_shared_memory(gl.float32, [SIZE], FLAT)
        values = values.to(gl.float32)
        replayed_d.store(gl.sum(values * ring_d, axis=1))
        replayed_o.store(gl.sum(values * ring_o, axis=1))
        if not flush:
            if part == 0:
                gl.store(g_ptr + written.to(gl.int64) * g_stride_l + channel * g_stride_k, log_decay)
                if hv % GROUP == 0:
                    stored = key.to(k_ptr.dtype.element_ty)
                    gl.store(k_ptr + written.to(gl.int64) * k_stride_l + whole.to(gl.int64) * k_stride_k, stored)
    else:
        keep_column.store(gl.exp(log_decay))

    keep = keep_column.load(COLUMN)
    weight_d = gl.expand_dims(keep * key_column.load(COLUMN), 0)
    weight_o = gl.expand_dims(keep * query_column.load(COLUMN), 0)
    values_ptr = qkv_ptr + 2 * heads * K + hv * V + first_row
    for t in gl.static_range(TILES):
        value = gl.load(values_ptr + t * TILE + v).to(gl.float32)
        async_copy.wait_group(TILES - 1 - t)
        state = states.index(t).load(ROWS).to(gl.float32)
        recalled = gl.sum(state * weight_d, axis=1)
        out = gl.sum(state * weight_o, axis=1)
        if RING:
            recalled += replayed_d.slice(t * TILE, TILE).load(ROW)
            out += replayed_o.slice(t * TILE, TILE).load(ROW)
        d = beta * (value - recalled)
        gl.store(out_ptr + t * TILE + v, (out + d * key_query).to(out_ptr.dtype.element_ty))
        if flush:
            _write_back(
                state_ptr,
                state_stride_v,
                first_row + t * TILE,
                states.index(t),
                d,
                keep_column,
                key_column,
                decayed,
                d_ptr,
                d_stride_v,
                d_stride_l,
                written,
                BLOCK_L,
                RING,
                PRODUCT,
            )
        elif RING:
            append_ptr = d_ptr + written.to(gl.int64) * d_stride_l
            gl.store(append_ptr + (first_row + t * TILE + v) * d_stride_v, d.to(d_ptr.dtype.element_ty))
