"""Device functions that say where a sequence's queries and keys lie, which keys a query sees, and how it is rotated."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl


@no_type_check
@triton.jit
def segment_of(cu_ptr, sequence, num_tokens):
    """Return where a packed sequence begins and how many tokens it has, clamped into the tokens that there are."""
    begin = tl.minimum(tl.maximum(tl.load(cu_ptr + sequence).to(tl.int64), 0), num_tokens)
    end = tl.minimum(tl.maximum(tl.load(cu_ptr + sequence + 1).to(tl.int64), 0), num_tokens)
    return begin, tl.maximum(end - begin, 0).to(tl.int32)


@no_type_check
@triton.jit
def query_span(cu_q_ptr, used_q_ptr, sequence, max_q, num_q_tokens):
    """Return a sequence's first query token, counted from its batch row where there is one, and its queries."""
    first = sequence * 0
    length = max_q + sequence.to(tl.int32) * 0
    if cu_q_ptr is not None:
        first, own = segment_of(cu_q_ptr, sequence, num_q_tokens)
        length = tl.minimum(own, max_q)
    if used_q_ptr is not None:
        length = tl.maximum(tl.minimum(length, tl.load(used_q_ptr + sequence)), 0)
    return first, length


@no_type_check
@triton.jit
def key_span(
    cu_k_ptr, used_k_ptr, leftpad_ptr, cu_new_ptr, sequence, cached, num_new, num_new_tokens, capacity
):  # fmt: skip
    """Return a sequence's first key token, its first slot, and how many slots are filled, new tokens included.

    The first token is not zero where sequences lie packed. More slots may be filled than there are: their number
    places the queries all the same.
    """
    first_token = sequence * 0
    filled = cached + sequence.to(tl.int32) * 0
    if cu_k_ptr is not None:
        first_token, filled = segment_of(cu_k_ptr, sequence, capacity)
        if used_k_ptr is not None:
            filled = tl.maximum(tl.minimum(filled, tl.load(used_k_ptr + sequence)), 0)
    elif used_k_ptr is not None:
        filled = tl.load(used_k_ptr + sequence)
    if cu_new_ptr is not None:
        _, new = segment_of(cu_new_ptr, sequence, num_new_tokens)
        filled += new
    else:
        filled += num_new
    first_slot = filled * 0
    if leftpad_ptr is not None:
        first_slot = tl.load(leftpad_ptr + sequence)
    return first_token, first_slot, tl.maximum(filled, first_slot)


@no_type_check
@triton.jit
def seen_by(
    place,
    first_slot,
    filled,
    capacity,
    left,
    right,
    chunk,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """Return the first and the last slot that a query at this slot sees; the last lies before the first for none."""
    low = tl.maximum(first_slot, 0) + place * 0
    high = tl.minimum(filled, capacity) - 1 + place * 0
    if LEFT:
        low = tl.maximum(low, place - left)
    if RIGHT:
        high = tl.minimum(high, place + right)
    if CHUNKED:
        # Division rounds towards zero, and a query may stand before the first key.
        key = place - first_slot
        begin = tl.where(key < 0, key - (chunk - 1), key) // chunk * chunk + first_slot
        low = tl.maximum(low, begin)
        high = tl.minimum(high, begin + chunk - 1)
    return low, high


@no_type_check
@triton.jit
def rotated(
    x,
    x_pointers,
    mask,
    x_stride_dim,
    cos_ptr,
    sin_ptr,
    cos_stride,
    sin_stride,
    position,
    table_rows,
    dims,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Rotate loaded rows by the table rows of their positions; one that the table lacks stays as it is.

    ``x`` has a row for each position and a column for each of ``dims``, loaded from ``x_pointers``.
    """
    HALF: tl.constexpr = ROTARY_DIM // 2
    if INTERLEAVED:
        pair = dims // 2
        is_second = dims % 2 == 1
        step = tl.where(is_second, -1, 1)
    else:
        pair = dims % HALF
        is_second = dims >= HALF
        step = tl.where(is_second, -HALF, HALF)
    turns = dims < ROTARY_DIM
    partner_pointers = x_pointers + (step.to(tl.int64) * x_stride_dim)[None, :]
    partner = tl.load(partner_pointers, mask=mask & turns[None, :], other=0.0).to(tl.float32)
    known = (position >= 0) & (position < table_rows)
    table_mask = known[:, None] & turns[None, :]
    row = tl.where(known, position, 0).to(tl.int64)[:, None]
    cos = tl.load(cos_ptr + row * cos_stride + pair[None, :], mask=table_mask, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * sin_stride + pair[None, :], mask=table_mask, other=0.0).to(tl.float32)
    signed = tl.where(is_second[None, :], partner, -partner)
    return tl.where(table_mask, x.to(tl.float32) * cos + signed * sin, x.to(tl.float32)).to(x.dtype)
