"""Triton kernel of the Kimi delta attention decode: with a replay ring over a checkpoint, or on the plain state."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from tensorpact.reporting.device import tell

SOFTPLUS_IS_LINEAR = tl.constexpr(20.0)
NORM_EPSILON = tl.constexpr(1e-6)

# Pool sizes and per-step addresses must not compile a kernel for each combination.
COUNTS = ["num_slots", "flag_call"]
STEPS = ["indices_ptr", "write_pos_ptr", "force_flush_ptr"]


@no_type_check
@triton.jit
def _log1p_exp(x):
    """Softplus that keeps its relative precision where exp(x) vanishes beside 1."""
    e = tl.exp(tl.minimum(x, SOFTPLUS_IS_LINEAR))
    u = 1.0 + e
    # log(u) * e / (u - 1) undoes the rounding of 1 + e.
    small = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(x > SOFTPLUS_IS_LINEAR, x, small)


@no_type_check
@triton.jit
def _log_decay(a_ptr, a_log_ptr, dt_bias_ptr, hv, k, in_k, lower_bound, K: tl.constexpr, BOUNDED: tl.constexpr):
    """Return this token's natural-log decay of each key channel."""
    x = tl.load(a_ptr + hv * K + k, mask=in_k, other=0.0).to(tl.float32)
    x += tl.load(dt_bias_ptr + hv * K + k, mask=in_k, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log_ptr + hv).to(tl.float32))
    if BOUNDED:
        return lower_bound / (1.0 + tl.exp(-rate * x))
    return -rate * _log1p_exp(x)


@no_type_check
@triton.jit
def _unit(x):
    return x / tl.sqrt(tl.sum(x * x, axis=0) + NORM_EPSILON)


@no_type_check
@triton.jit(noinline=True)
def report_row(flag_memory, flag_counters, flag_call, row, slot, num_slots, written, L: tl.constexpr):
    """Report the slot of a row that is past the pool, or else its cursor, which is outside the ring.

    A function of its own, so that its code lies behind the kernel's and not in the middle of what runs.
    """
    beyond = slot >= num_slots
    limit = tl.where(beyond, num_slots - 1, tl.where(written < 0, 0, L - 1))
    value = tl.where(beyond, slot, written + slot * 0)
    tell(flag_memory, flag_counters, flag_call, tl.where(beyond, 0, 1), row, value, limit)


@no_type_check
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=STEPS)
def kda_streamed_kernel(
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
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    L: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_L: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    NORMALISE: tl.constexpr,
    BOUNDED: tl.constexpr,
    ROUND_BETA: tl.constexpr,
    RING: tl.constexpr,
):
    """One program: one row of the batch, one value head, ``ROWS`` rows of its state."""
    # torch.compile hands numbers over in float64.
    scale = tl.cast(scale, tl.float32)
    lower_bound = tl.cast(lower_bound, tl.float32)
    pid = tl.program_id(0).to(tl.int64)
    part = (pid % PARTS).to(tl.int32)
    hv = pid // PARTS % HV
    row = pid // PARTS // HV
    h = hv // GROUP
    first_row = part * ROWS
    last_row = min(first_row + ROWS, V)
    out_ptr += (row * HV + hv) * V

    slot = tl.load(indices_ptr + row * indices_stride).to(tl.int64)
    live = (slot >= 0) & (slot < num_slots)
    written = 0
    flush = True
    if RING:
        written = tl.load(write_pos_ptr + row * write_pos_stride)
        live = live & (written >= 0) & (written < L)
        flush = written == L - 1
        if force_flush_ptr is not None:
            flush = flush | (tl.load(force_flush_ptr + row * force_flush_stride) != 0)
    if not live:
        if flag_memory is not None:
            # A negative slot is what marks padding; of a row's programs one reports.
            if (slot >= 0) & (hv == 0) & (part == 0):
                report_row(flag_memory, flag_counters, flag_call, row, slot, num_slots, written, L)
        for start in tl.range(first_row, last_row, BLOCK_V):
            v = start + tl.arange(0, BLOCK_V)
            tl.store(out_ptr + v, tl.zeros((BLOCK_V,), out_ptr.dtype.element_ty), mask=v < V)
        return

    k = tl.arange(0, BLOCK_K)
    in_k = k < K
    heads = HV // GROUP
    qkv_ptr += row * qkv_stride_row
    query = tl.load(qkv_ptr + h * K + k, mask=in_k, other=0.0).to(tl.float32)
    key = tl.load(qkv_ptr + (heads + h) * K + k, mask=in_k, other=0.0).to(tl.float32)
    if NORMALISE:
        query = _unit(query)
        key = _unit(key)
    query *= scale
    log_decay = _log_decay(a_ptr + row * a_stride_row, a_log_ptr, dt_bias_ptr, hv, k, in_k, lower_bound, K, BOUNDED)
    raw = tl.load(b_ptr + row * b_stride_row + hv)
    beta = 1.0 / (1.0 + tl.exp(-raw.to(tl.float32)))
    if ROUND_BETA:
        beta = beta.to(raw.dtype).to(tl.float32)
    key_query = tl.sum(key * query, axis=0)
    keep = tl.exp(log_decay)
    ring_d = 0.0
    ring_o = 0.0
    decayed = 0.0
    step = tl.arange(0, BLOCK_L).to(tl.int64)
    if RING:
        d_ptr += slot * d_stride_slot + hv * d_stride_head
        k_ptr += slot * k_stride_slot + h * k_stride_head
        g_ptr += slot * g_stride_slot + hv * g_stride_head
        channel = k.to(tl.int64)
        # Row j is decayed by the rows behind it, so the sums start one row later than the keys.
        later = tl.load(
            g_ptr + (step + 1)[:, None] * g_stride_l + channel[None, :] * g_stride_k,
            mask=(step + 1 < written)[:, None] & in_k[None, :],
            other=0.0,
        )
        first = tl.load(g_ptr + channel * g_stride_k, mask=in_k & (tl.zeros_like(k) < written), other=0.0)
        keys = tl.load(
            k_ptr + step[:, None] * k_stride_l + channel[None, :] * k_stride_k,
            mask=(step < written)[:, None] & in_k[None, :],
            other=0.0,
        ).to(tl.float32)
        decayed = keys * tl.exp(tl.cumsum(later, axis=0, reverse=True) + log_decay[None, :])
        ring_d = tl.sum(decayed * key[None, :], axis=1)
        ring_o = tl.sum(decayed * query[None, :], axis=1)
        keep = tl.exp(log_decay + (first + tl.sum(later, axis=0)))
        if not flush:
            if part == 0:
                ring_row = written.to(tl.int64)
                tl.store(g_ptr + ring_row * g_stride_l + channel * g_stride_k, log_decay, mask=in_k)
                if hv % GROUP == 0:
                    stored = key.to(k_ptr.dtype.element_ty)
                    tl.store(k_ptr + ring_row * k_stride_l + channel * k_stride_k, stored, mask=in_k)
    weight_d = keep * key
    weight_o = keep * query

    state_ptr += slot * state_stride_slot + hv * state_stride_head
    values_ptr = qkv_ptr + 2 * heads * K + hv * V
    # A row of the state needs no other, so the checkpoint is read once, and written back from registers on a flush.
    for start in tl.range(first_row, last_row, BLOCK_V, num_stages=STAGES):
        v = start + tl.arange(0, BLOCK_V)
        in_v = v < V
        rows = v.to(tl.int64)[:, None]
        in_tile = in_v[:, None] & in_k[None, :]
        tile_ptr = state_ptr + rows * state_stride_v + k[None, :]
        state = tl.load(tile_ptr, mask=in_tile, other=0.0).to(tl.float32)
        recalled = tl.sum(state * weight_d[None, :], axis=1)
        out = tl.sum(state * weight_o[None, :], axis=1)
        if RING:
            in_ring = in_v[:, None] & (step < written)[None, :]
            ring = tl.load(d_ptr + rows * d_stride_v + step[None, :] * d_stride_l, mask=in_ring, other=0.0)
            ring = ring.to(tl.float32)
            recalled += tl.sum(ring * ring_d[None, :], axis=1)
            out += tl.sum(ring * ring_o[None, :], axis=1)
        value = tl.load(values_ptr + v, mask=in_v, other=0.0).to(tl.float32)
        d = beta * (value - recalled)
        tl.store(out_ptr + v, (out + d * key_query).to(out_ptr.dtype.element_ty), mask=in_v)
        if flush:
            state = state * keep[None, :] + d[:, None] * key[None, :]
            if RING:
                state += tl.dot(ring, decayed, input_precision="tf32x3")
            tl.store(tile_ptr, state.to(state_ptr.dtype.element_ty), mask=in_tile)
        elif RING:
            append_ptr = d_ptr + v.to(tl.int64) * d_stride_v + written.to(tl.int64) * d_stride_l
            tl.store(append_ptr, d.to(d_ptr.dtype.element_ty), mask=in_v)
