"""Sparse attention over a paged pool whose rows are key and value at once, as the public functions have it."""

from typing import Annotated

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from tensorpact import contract
from tensorpact.constraints import OneOf
from tensorpact_contracts.sparse_prefill import SPARSE_DECODE, SPARSE_PREFILL
from tensorpact_kernels._dispatch import runs_triton

from .naive import naive_sparse_decode, naive_sparse_prefill

HALF = OneOf(torch.bfloat16, torch.float16)
INDEX = OneOf(torch.int32, torch.int64)


@contract(SPARSE_PREFILL)
def sparse_attn_v4_paged_prefill(
    q: Annotated[Float[Tensor, "T H D"], HALF],
    unified_kv: Float[Tensor, "P D"],
    kv_indices_prefix: Annotated[Int[Tensor, " NP"], INDEX],
    kv_indptr_prefix: Annotated[Int[Tensor, " T+1"], INDEX],
    kv: Float[Tensor, "N D"],
    kv_indices_extend: Annotated[Int[Tensor, " NE"], INDEX],
    kv_indptr_extend: Annotated[Int[Tensor, " T+1"], INDEX],
    attn_sink: Float[Tensor, " H"],
    softmax_scale: float,
    *,
    return_lse: bool = False,
) -> Float[Tensor, "T H D"] | tuple[Float[Tensor, "T H D"], Float[Tensor, "T H"]]:
    """Attend each query token to rows gathered from a pool and from this forward's own rows, in one softmax.

    Args:
        q: Queries, any strides.
        unified_kv: Paged pool, page size 1, so a row is a slot; any strides.
        kv_indices_prefix: Pool rows of all tokens, one after the other; a negative entry is skipped.
        kv_indptr_prefix: Where each token's entries start and end in ``kv_indices_prefix``.
        kv: Rows of this forward, any strides.
        kv_indices_extend: Rows of ``kv`` of all tokens; a negative entry is skipped.
        kv_indptr_extend: Where each token's entries start and end in ``kv_indices_extend``.
        attn_sink: One natural-log logit a head that joins the softmax without a value; not scaled.
        softmax_scale: Factor on the scores, normally ``D ** -0.5``.
        return_lse: Also return the natural log of each softmax denominator, the sink included.

    Returns:
        A new tensor in the dtype of ``q``, and the log denominators in float32 if asked for. A token without any row
        gets zeros.

    Raises:
        RuntimeError: One of the public checks is broken.
        ValueError: Shapes, devices or the scale are wrong in a way the public code does not look at.
        TypeError: Indices are no integers.
    """
    if q.is_meta:
        out = torch.empty_like(q)
        return (out, q.new_empty(q.shape[:2], dtype=torch.float32)) if return_lse else out
    if runs_triton(q):
        from .launch import sparse_prefill_triton as run
    else:
        run = naive_sparse_prefill
    return run(
        q,
        unified_kv,
        kv_indices_prefix,
        kv_indptr_prefix,
        kv,
        kv_indices_extend,
        kv_indptr_extend,
        attn_sink,
        softmax_scale,
        return_lse=return_lse,
    )


@contract(SPARSE_DECODE)
def sparse_attn_v4_paged_decode(
    q: Annotated[Float[Tensor, "T H D"], HALF],
    unified_kv: Float[Tensor, "P D"],
    kv_indices: Annotated[Int[Tensor, " NI"], INDEX],
    kv_indptr: Annotated[Int[Tensor, " T+1"], INDEX],
    attn_sink: Float[Tensor, " H"],
    softmax_scale: float,
    kv_scales: Float32[Tensor, "P D//64"] | None = None,
    *,
    return_lse: bool = False,
) -> Float[Tensor, "T H D"] | tuple[Float[Tensor, "T H D"], Float[Tensor, "T H"]]:
    """Attend each query token to rows gathered from a paged pool, which may be fp8 with a scale for each 64 columns.

    Args:
        q: Queries, any strides.
        unified_kv: Paged pool, page size 1; ``float8_e4m3fn`` where ``kv_scales`` is given.
        kv_indices: Pool rows of all tokens, one after the other; each must exist: there is no mark for one to skip.
        kv_indptr: Where each token's entries start and end in ``kv_indices``; a padded token has none.
        attn_sink: One natural-log logit a head that joins the softmax without a value; not scaled.
        softmax_scale: Factor on the scores, normally ``D ** -0.5``.
        kv_scales: Scale of each group of 64 columns of a row; rounded to the dtype of ``q`` before use.
        return_lse: Also return the natural log of each softmax denominator, the sink included.

    Returns:
        A new tensor in the dtype of ``q``, and the log denominators in float32 if asked for.

    Raises:
        RuntimeError: One of the public checks is broken.
        ValueError: Shapes, devices or the scale are wrong in a way the public code does not look at.
        TypeError: Indices are no integers.
    """
    if q.is_meta:
        out = torch.empty_like(q)
        return (out, q.new_empty(q.shape[:2], dtype=torch.float32)) if return_lse else out
    if runs_triton(q):
        from .launch import sparse_decode_triton as run
    else:
        run = naive_sparse_decode
    return run(
        q, unified_kv, kv_indices, kv_indptr, attn_sink, softmax_scale, kv_scales=kv_scales, return_lse=return_lse
    )
