"""Triton kernel that appends new keys and values to a cache in place, rotating the keys on their way."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl

from tensorpact_kernels.flash_attention.device_spans import rotated

COUNTS = ["num_sequences", "new_per_batch", "cached", "capacity", "num_rows", "num_pages", "table_rows"]
VECTORS = ["cu_new_ptr", "used_k_ptr", "batch_idx_ptr", "page_table_ptr", "rotary_base_ptr"]


@no_type_check
@triton.jit
def _sequence_of(cu_ptr, token, num_sequences, BLOCK_S: tl.constexpr):
    """Return the packed sequence that a token belongs to and its first token; the number of sequences for none."""
    ended = 0
    for start in range(0, num_sequences, BLOCK_S):
        number = start + tl.arange(0, BLOCK_S)
        end = tl.load(cu_ptr + number + 1, mask=number < num_sequences, other=0).to(tl.int64)
        ended += tl.sum(((number < num_sequences) & (end <= token)).to(tl.int32), axis=0)
    known = ended < num_sequences
    first = tl.load(cu_ptr + tl.where(known, ended, 0)).to(tl.int64)
    return tl.where(known & (first <= token), ended, num_sequences), first


@no_type_check
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=VECTORS)
def append_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    cu_new_ptr,
    used_k_ptr,
    batch_idx_ptr,
    page_table_ptr,
    cos_ptr,
    sin_ptr,
    rotary_base_ptr,
    num_sequences,
    new_per_batch,
    cached,
    capacity,
    num_rows,
    num_pages,
    table_rows,
    k_stride_batch,
    k_stride_token,
    k_stride_head,
    k_stride_dim,
    v_stride_batch,
    v_stride_token,
    v_stride_head,
    v_stride_dim,
    k_cache_stride_row,
    k_cache_stride_slot,
    k_cache_stride_head,
    k_cache_stride_dim,
    v_cache_stride_row,
    v_cache_stride_slot,
    v_cache_stride_head,
    v_cache_stride_dim,
    page_table_stride_row,
    page_table_stride_page,
    cos_stride,
    sin_stride,
    KEY_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGED: tl.constexpr,
    PAGE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Write one new token's key and value, of a block of heads, to its slot; one without a slot is dropped."""
    head_blocks: tl.constexpr = (KEY_HEADS + BLOCK_H - 1) // BLOCK_H
    number = (tl.program_id(0) // head_blocks).to(tl.int64)
    heads = (tl.program_id(0) % head_blocks) * BLOCK_H + tl.arange(0, BLOCK_H)
    if cu_new_ptr is not None:
        sequence, first = _sequence_of(cu_new_ptr, number, num_sequences, 128)
        sequence = sequence.to(tl.int64)
        batch = sequence * 0
        token = number
        place = (number - first).to(tl.int32)
    else:
        sequence = number // new_per_batch
        batch = sequence
        token = number % new_per_batch
        place = token.to(tl.int32)
    if sequence >= num_sequences:
        return
    filled = cached + place * 0
    if used_k_ptr is not None:
        filled = tl.load(used_k_ptr + sequence)
    slot = filled + place
    row = sequence
    if batch_idx_ptr is not None:
        row = tl.load(batch_idx_ptr + sequence).to(tl.int64)
    if (slot < 0) | (slot >= capacity) | (row < 0) | (row >= num_rows):
        return
    inside = slot.to(tl.int64)
    if PAGED:
        page = tl.load(page_table_ptr + row * page_table_stride_row + (inside // PAGE) * page_table_stride_page)
        row = page.to(tl.int64)
        inside = inside % PAGE
        if (row < 0) | (row >= num_pages):
            return

    is_head = (heads < KEY_HEADS)[:, None]
    wide_heads = heads.to(tl.int64)[:, None]
    value_dims = tl.arange(0, BLOCK_V)
    v_mask = is_head & (value_dims < VALUE_DIM)[None, :]
    wide_dims = value_dims.to(tl.int64)[None, :]
    v_from = v_ptr + batch * v_stride_batch + token * v_stride_token
    v_to = v_cache_ptr + row * v_cache_stride_row + inside * v_cache_stride_slot
    v = tl.load(v_from + wide_heads * v_stride_head + wide_dims * v_stride_dim, mask=v_mask)
    tl.store(v_to + wide_heads * v_cache_stride_head + wide_dims * v_cache_stride_dim, v, mask=v_mask)
    if k_cache_ptr is not None:
        dims = tl.arange(0, BLOCK_D)
        k_mask = is_head & (dims < HEAD_DIM)[None, :]
        wide_dims = dims.to(tl.int64)[None, :]
        k_from = k_ptr + batch * k_stride_batch + token * k_stride_token
        k_pointers = k_from + wide_heads * k_stride_head + wide_dims * k_stride_dim
        k = tl.load(k_pointers, mask=k_mask, other=0.0)
        if ROTARY_DIM > 0:
            position = filled + place
            if rotary_base_ptr is not None:
                position = tl.load(rotary_base_ptr + sequence) + place
            k = rotated(
                k, k_pointers, k_mask, k_stride_dim, cos_ptr, sin_ptr, cos_stride, sin_stride,
                tl.zeros((BLOCK_H,), dtype=tl.int32) + position, table_rows, dims, ROTARY_DIM, INTERLEAVED,
            )  # fmt: skip
        k_to = k_cache_ptr + row * k_cache_stride_row + inside * k_cache_stride_slot
        tl.store(k_to + wide_heads * k_cache_stride_head + wide_dims * k_cache_stride_dim, k, mask=k_mask)
