"""Sparse attention over gathered rows, in plain torch: what the Triton kernels are compared with.

Half inputs are computed in float32 and float64 inputs in float64, so that upcasting the arguments gives the reference.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SCALE_GROUP = 64
"""Pool columns that share one fp8 scale."""

_GATHER_LIMIT = 1 << 25


class _Source(NamedTuple):
    """Rows to attend to, and the CSR lists that say which token sees which of them."""

    rows: Tensor
    indices: Tensor
    indptr: Tensor
    scales: Tensor | None = None


def naive_sparse_prefill(
    q: Tensor,
    unified_kv: Tensor,
    kv_indices_prefix: Tensor,
    kv_indptr_prefix: Tensor,
    kv: Tensor,
    kv_indices_extend: Tensor,
    kv_indptr_extend: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    *,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each token to its pool rows and its new rows under one softmax with a sink.

    Args:
        q: Queries.
        unified_kv: Paged pool; a row is both key and value.
        kv_indices_prefix: Pool rows of all tokens, back to back; an index outside the pool is skipped.
        kv_indptr_prefix: Where each token's pool rows begin and end.
        kv: New rows of this forward.
        kv_indices_extend: New rows of all tokens, back to back; an index outside ``kv`` is skipped.
        kv_indptr_extend: Where each token's new rows begin and end.
        attn_sink: Natural-log logit per head that joins the denominator and carries no value.
        softmax_scale: Factor on the scores, not on the sink.
        return_lse: Also return the natural log of the denominator, sink included.
    """
    sources = (
        _Source(unified_kv, kv_indices_prefix, kv_indptr_prefix),
        _Source(kv, kv_indices_extend, kv_indptr_extend),
    )
    out, lse = _attend(q, sources, attn_sink, float(softmax_scale))
    return (out, lse) if return_lse else out


def naive_sparse_decode(
    q: Tensor,
    unified_kv: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    kv_scales: Tensor | None = None,
    *,
    return_lse: bool = False,
    kv_splits: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each token to its pool rows under a softmax with a sink.

    Args:
        q: Queries.
        unified_kv: Paged pool, fp8 when ``kv_scales`` is given.
        kv_indices: Pool rows of all tokens, back to back; an index outside the pool is skipped.
        kv_indptr: Where each token's rows begin and end.
        attn_sink: Natural-log logit per head that joins the denominator and carries no value.
        softmax_scale: Factor on the scores, not on the sink.
        kv_scales: One scale per row and group of 64 columns, rounded to the dtype of ``q`` before use.
        return_lse: Also return the natural log of the denominator, sink included.
        kv_splits: Accepted for the kernel's sake; the result does not depend on it.
    """
    source = _Source(unified_kv, kv_indices, kv_indptr, kv_scales)
    out, lse = _attend(q, (source,), attn_sink, float(softmax_scale))
    return (out, lse) if return_lse else out


def _attend(q: Tensor, sources: tuple[_Source, ...], attn_sink: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    tokens, heads, dim = q.shape
    out = torch.empty_like(q)
    lse = torch.empty((tokens, heads), dtype=compute, device=q.device)
    spans = [_spans(source, tokens) for source in sources]
    longest = sum(int((end - begin).max()) if tokens else 0 for begin, end in spans)
    step = max(1, _GATHER_LIMIT // max(1, longest * dim))
    for first in range(0, tokens, step):
        part = slice(first, min(first + step, tokens))
        gathered = [
            _gather(source, begin[part], end[part], q.dtype, compute)
            for source, (begin, end) in zip(sources, spans, strict=True)
        ]
        rows = torch.cat([piece[0] for piece in gathered], dim=1)
        valid = torch.cat([piece[1] for piece in gathered], dim=1)
        out[part], lse[part] = _softmax_with_sink(q[part].to(compute), rows, valid, attn_sink.to(compute), scale)
    return out, lse


def _spans(source: _Source, tokens: int) -> tuple[Tensor, Tensor]:
    """Return where each token's list begins and ends, clamped into the index buffer."""
    indptr = source.indptr[: tokens + 1].to(torch.int64).clamp(0, source.indices.numel())
    return indptr[:-1], torch.maximum(indptr[:-1], indptr[1:])


def _gather(
    source: _Source, begin: Tensor, end: Tensor, query_dtype: torch.dtype, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the tokens' rows, padded to the longest list, and which of them count."""
    width = int((end - begin).max())
    position = begin[:, None] + torch.arange(width, device=begin.device)
    inside = position < end[:, None]
    index = torch.full(position.shape, -1, dtype=torch.int64, device=begin.device)
    index[inside] = source.indices[position[inside]].to(torch.int64)
    valid = (index >= 0) & (index < source.rows.shape[0])
    gathered = torch.zeros((*index.shape, source.rows.shape[1]), dtype=compute, device=begin.device)
    gathered[valid] = _dequantised(source, index[valid], query_dtype).to(compute)
    return gathered, valid


def _dequantised(source: _Source, index: Tensor, query_dtype: torch.dtype) -> Tensor:
    if source.scales is None:
        return source.rows[index]
    # fp8 has no index kernel on every device; its bytes do.
    rows = source.rows.view(torch.uint8)[index].view(source.rows.dtype).to(query_dtype)
    scales = source.scales[index].to(query_dtype).repeat_interleave(SCALE_GROUP, dim=1)
    return rows * scales


def _softmax_with_sink(q: Tensor, rows: Tensor, valid: Tensor, sink: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    scores = torch.einsum("thd,tld->thl", q, rows) * scale
    scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
    sink_column = sink[None, :, None].expand(q.shape[0], -1, 1)
    logits = torch.cat([scores, sink_column], dim=2)
    peak = logits.amax(dim=2, keepdim=True)
    peak = torch.where(peak == float("-inf"), torch.zeros_like(peak), peak)
    weights = torch.exp(logits - peak)
    denominator = weights.sum(dim=2, keepdim=True)
    numerator = torch.einsum("thl,tld->thd", weights[:, :, :-1], rows)
    out = torch.where(denominator == 0, torch.zeros_like(numerator), numerator / denominator)
    return out, (peak + torch.log(denominator))[:, :, 0]
