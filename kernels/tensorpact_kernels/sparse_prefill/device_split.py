"""Triton kernel that merges what several programs made of one token's rows."""

# Triton has no stubs, and pyright sees the parameters of a device function as untyped.
# pyright: reportMissingTypeStubs=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from tensorpact_kernels.sparse_prefill.device import LOWEST, with_sink


@no_type_check
@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["sink_ptr", "lse_ptr"])
def sparse_combine_kernel(
    partial_acc_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    sink_ptr,
    out_ptr,
    lse_ptr,
    num_splits,
    out_stride_token,
    out_stride_head,
    out_stride_dim,
    sink_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Merge the splits of one token and head, for one chunk of columns."""
    chunks: tl.constexpr = (HEAD_DIM + BLOCK_C - 1) // BLOCK_C
    pair = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    token = pair // HEADS
    head = pair % HEADS
    splits = tl.arange(0, BLOCK_S)
    dims = chunk * BLOCK_C + tl.arange(0, BLOCK_C)
    sink = tl.load(sink_ptr + head * sink_stride)
    acc_offsets = (pair * num_splits + splits)[:, None] * HEAD_DIM + dims[None, :]
    acc_mask = (splits < num_splits)[:, None] & (dims < HEAD_DIM)[None, :]
    if EARLY:
        gdc_wait()
    row_max = tl.load(partial_max_ptr + pair * num_splits + splits, mask=splits < num_splits, other=LOWEST)
    row_sum = tl.load(partial_sum_ptr + pair * num_splits + splits, mask=splits < num_splits, other=0.0)
    acc = tl.load(partial_acc_ptr + acc_offsets, mask=acc_mask, other=0.0)

    peak = tl.max(row_max, axis=0)
    weights = tl.exp2(row_max - peak)
    merged = tl.sum(acc * weights[:, None], axis=0)
    total = tl.sum(row_sum * weights, axis=0)
    out, lse = with_sink(merged[None, :], peak + tl.zeros((1,), tl.float32), total + tl.zeros((1,), tl.float32), sink)
    out_offsets = token * out_stride_token + head * out_stride_head + dims.to(tl.int64) * out_stride_dim
    tl.store(out_ptr + out_offsets[None, :], out.to(out_ptr.dtype.element_ty), mask=(dims < HEAD_DIM)[None, :])
    if lse_ptr is not None:
        tl.store(lse_ptr + pair + tl.arange(0, 1), lse, mask=(chunk + tl.arange(0, 1)) == 0)
