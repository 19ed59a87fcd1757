"""The Triton kernel that moves tokens within a buffer and writes a chunk behind them, in one pass and in place.

Why no program reads what another one has overwritten. Slot ``i`` takes what slot ``i + shift`` had, so slots that
differ by anything but a multiple of ``shift`` have nothing to do with each other. A program owns some columns and, of
those, either all slots or the slots of some remainders modulo ``shift``: all that it reads and writes is its own.
Within a program a step reads its slots, waits at a barrier until every thread has read, and then writes them. A step
never writes what a later one reads: it writes slots up to ``i``, later ones read from ``i + shift`` on.
"""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

# Slots and counts change from step to step; specialising on them would compile a kernel for each combination.
COUNTS = ["first", "shift", "kept", "total", "stride", "groups"]


@no_type_check
@triton.jit
def _walk(
    buffer_ptr,
    chunk_ptr,
    first,
    shift,
    kept,
    total,
    stride,
    group,
    column,
    batch,
    heads,
    dim,
    buffer_stride_batch,
    buffer_stride_slot,
    buffer_stride_head,
    buffer_stride_dim,
    chunk_stride_batch,
    chunk_stride_token,
    chunk_stride_head,
    chunk_stride_dim,
    FLAT: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Move and write the slots ``group * ROWS + row + step * stride`` of one block of columns."""
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < heads * dim
    wide = columns.to(tl.int64)
    if FLAT:
        buffer_columns = wide * buffer_stride_dim
        chunk_columns = wide * chunk_stride_dim
    else:
        buffer_columns = (wide // dim) * buffer_stride_head + (wide % dim) * buffer_stride_dim
        chunk_columns = (wide // dim) * chunk_stride_head + (wide % dim) * chunk_stride_dim
    buffer_base = buffer_ptr + batch * buffer_stride_batch + first.to(tl.int64) * buffer_stride_slot
    chunk_base = chunk_ptr + batch * chunk_stride_batch
    remainder = group * ROWS + tl.arange(0, ROWS)
    for step in range(tl.cdiv(total, stride)):
        slots = remainder + step * stride
        mine = (remainder < stride) & (slots < total)
        moves = mine & (slots < kept)
        source = (slots + shift).to(tl.int64) * buffer_stride_slot
        values = tl.load(
            buffer_base + source[:, None] + buffer_columns[None, :], mask=moves[:, None] & inside[None, :], other=0
        )
        if CHUNK:
            token = (slots - kept).to(tl.int64) * chunk_stride_token
            fresh = mine & (slots >= kept)
            written = tl.load(
                chunk_base + token[:, None] + chunk_columns[None, :], mask=fresh[:, None] & inside[None, :], other=0
            )
            values = tl.where(fresh[:, None], written, values)
        tl.debug_barrier()
        target = slots.to(tl.int64) * buffer_stride_slot
        tl.store(buffer_base + target[:, None] + buffer_columns[None, :], values, mask=mine[:, None] & inside[None, :])


@no_type_check
@triton.jit(do_not_specialize=COUNTS)
def shift_and_write_kernel(
    k_ptr,
    v_ptr,
    key_ptr,
    value_ptr,
    first,
    shift,
    kept,
    total,
    stride,
    groups,
    heads,
    key_dim,
    value_dim,
    k_stride_batch,
    k_stride_slot,
    k_stride_head,
    k_stride_dim,
    v_stride_batch,
    v_stride_slot,
    v_stride_head,
    v_stride_dim,
    key_stride_batch,
    key_stride_token,
    key_stride_head,
    key_stride_dim,
    value_stride_batch,
    value_stride_token,
    value_stride_head,
    value_stride_dim,
    FLAT: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    group = tl.program_id(0) % groups
    column = tl.program_id(0) // groups
    batch = tl.program_id(1).to(tl.int64)
    if tl.program_id(2) == 0:
        _walk(
            k_ptr,
            key_ptr,
            first,
            shift,
            kept,
            total,
            stride,
            group,
            column,
            batch,
            heads,
            key_dim,
            k_stride_batch,
            k_stride_slot,
            k_stride_head,
            k_stride_dim,
            key_stride_batch,
            key_stride_token,
            key_stride_head,
            key_stride_dim,
            FLAT,
            CHUNK,
            ROWS,
            COLUMNS,
        )
    else:
        _walk(
            v_ptr,
            value_ptr,
            first,
            shift,
            kept,
            total,
            stride,
            group,
            column,
            batch,
            heads,
            value_dim,
            v_stride_batch,
            v_stride_slot,
            v_stride_head,
            v_stride_dim,
            value_stride_batch,
            value_stride_token,
            value_stride_head,
            value_stride_dim,
            FLAT,
            CHUNK,
            ROWS,
            COLUMNS,
        )
