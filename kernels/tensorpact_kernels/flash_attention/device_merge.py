"""Triton kernels around the attention: what several programs made of a row is merged, and unused rows are cleared."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from tensorpact_kernels.flash_attention.device import LOG2_E, with_sink
from tensorpact_kernels.flash_attention.device_spans import query_span

COUNTS = ["num_splits", "tokens_per_batch", "lse_stride_batch", "lse_stride_head"]


@no_type_check
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=["sinks_ptr", "lse_ptr"])
def flash_merge_kernel(
    partial_acc_ptr,
    partial_lse_ptr,
    sinks_ptr,
    out_ptr,
    lse_ptr,
    num_splits,
    tokens_per_batch,
    lse_stride_batch,
    lse_stride_head,
    out_stride_batch,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Merge the shares of one row, a token and a head, for one chunk of columns."""
    chunks: tl.constexpr = (VALUE_DIM + BLOCK_C - 1) // BLOCK_C
    number = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    head = number % HEADS
    batch = number // HEADS // tokens_per_batch
    token = number // HEADS % tokens_per_batch
    share = tl.arange(0, BLOCK_S)
    dims = chunk * BLOCK_C + tl.arange(0, BLOCK_C)
    sink = tl.full((1,), float("-inf"), dtype=tl.float32)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head + tl.arange(0, 1)).to(tl.float32) * LOG2_E
    if EARLY:
        gdc_wait()
    log2_sum = tl.load(partial_lse_ptr + number * num_splits + share, mask=share < num_splits, other=float("-inf"))
    # A share without a key holds no accumulator.
    held = (log2_sum != float("-inf"))[:, None] & (dims < VALUE_DIM)[None, :]
    rows = (number * num_splits + share) * VALUE_DIM
    acc = tl.load(partial_acc_ptr + rows[:, None] + dims[None, :], mask=held, other=0.0)
    peak = tl.max(log2_sum, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(log2_sum - peak)
    total = tl.zeros((1,), dtype=tl.float32) + tl.sum(weights, axis=0)
    factor, lse = with_sink(tl.zeros((1,), dtype=tl.float32) + peak, total, sink)
    merged = tl.sum(acc * weights[:, None], axis=0)[None, :] * factor[:, None]
    out_row = batch * out_stride_batch + token * out_stride_token + head * out_stride_head
    out_pointers = out_ptr + out_row + (dims.to(tl.int64) * out_stride_dim)[None, :]
    tl.store(out_pointers, merged.to(out_ptr.dtype.element_ty), mask=(dims < VALUE_DIM)[None, :])
    if lse_ptr is not None:
        place = batch * lse_stride_batch + head * lse_stride_head + token
        tl.store(lse_ptr + place + tl.arange(0, 1), lse, mask=(chunk + tl.arange(0, 1)) == 0)


@no_type_check
@triton.jit(
    do_not_specialize=["max_q", "num_q_tokens", "num_sequences", *COUNTS[2:]],
    do_not_specialize_on_alignment=["cu_q_ptr", "used_q_ptr", "lse_ptr"],
)
def clear_kernel(
    out_ptr,
    lse_ptr,
    cu_q_ptr,
    used_q_ptr,
    max_q,
    num_q_tokens,
    num_sequences,
    lse_stride_batch,
    lse_stride_head,
    out_stride_batch,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Give zeros and minus infinity to the tokens between a sequence's last query and the next one's first.

    The program before the first sequence has the tokens before it; the last sequence has all behind it.
    """
    gap = tl.program_id(0) // HEADS
    head = (tl.program_id(0) % HEADS).to(tl.int64)
    sequence = gap.to(tl.int64)
    if cu_q_ptr is not None:
        # One program more than there are sequences: the first has the tokens before all of them.
        own = tl.maximum(sequence - 1, 0)
        first, length = query_span(cu_q_ptr, used_q_ptr, own, max_q, num_q_tokens)
        following = tl.load(cu_q_ptr + sequence).to(tl.int64)
        begin = tl.where(sequence == 0, 0, first + length)
        end = tl.where(sequence == num_sequences, num_q_tokens, tl.minimum(following, num_q_tokens))
        batch = sequence * 0
    else:
        first, length = query_span(cu_q_ptr, used_q_ptr, sequence, max_q, num_q_tokens)
        begin = first + length
        end = first + max_q
        batch = sequence
    dims = tl.arange(0, BLOCK_C)
    for token in range(begin, end):
        out_row = batch * out_stride_batch + token * out_stride_token + head * out_stride_head
        zeros = tl.zeros((BLOCK_C,), dtype=out_ptr.dtype.element_ty)
        tl.store(out_ptr + out_row + dims.to(tl.int64) * out_stride_dim, zeros, mask=dims < VALUE_DIM)
        if lse_ptr is not None:
            tl.store(lse_ptr + batch * lse_stride_batch + head * lse_stride_head + token, float("-inf"))
