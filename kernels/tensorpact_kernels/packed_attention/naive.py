"""Attention over packed sequences, in plain torch: what the kernels are compared with.

Half inputs are computed in float32 and float64 inputs in float64, so that upcasting the arguments gives the reference.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

_SCORES_LIMIT = 1 << 25


def naive_packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds_q: Sequence[int],
    bounds_k: Sequence[int],
    softmax_scale: float,
    *,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend each sequence's queries to the keys of the same sequence.

    Args:
        q: Queries of all sequences, back to back.
        k: Keys of all sequences, back to back; a key head serves a group of query heads.
        v: Values, one for each key; the head size is their own.
        bounds_q: Where each sequence's queries begin, and the last one's end.
        bounds_k: As ``bounds_q``, for keys and values.
        softmax_scale: Factor on the scores.
        causal: Hide from a query the keys behind it, where the last query sees the last key.

    Returns:
        The values' weighted means, and the natural log of each softmax denominator with heads first. A row without a
        key it may see, or outside every sequence, gets zeros and minus infinity.
    """
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    tokens, heads, _ = q.shape
    groups = heads // max(1, k.shape[1])
    out = torch.zeros((tokens, heads, v.shape[2]), dtype=q.dtype, device=q.device)
    lse = torch.full((heads, tokens), float("-inf"), dtype=compute, device=q.device)
    for number in range(len(bounds_q) - 1):
        keys = slice(bounds_k[number], bounds_k[number + 1])
        length = max(0, keys.stop - keys.start)
        # Key heads are repeated, not queries folded, so that the group of each head is plain to see.
        key = k[keys].to(compute).repeat_interleave(groups, dim=1)
        value = v[keys].to(compute).repeat_interleave(groups, dim=1)
        shift = length - (bounds_q[number + 1] - bounds_q[number])
        step = max(1, _SCORES_LIMIT // max(1, heads * length))
        for first in range(bounds_q[number], bounds_q[number + 1], step):
            rows = slice(first, min(first + step, bounds_q[number + 1]))
            if not length:
                continue
            scores = torch.einsum("qhd,khd->hqk", q[rows].to(compute), key) * softmax_scale
            if causal:
                position = torch.arange(rows.start, rows.stop, device=q.device) - bounds_q[number] + shift
                hidden = torch.arange(length, device=q.device) > position[:, None]
                scores = scores.masked_fill(hidden, float("-inf"))
            lse[:, rows] = torch.logsumexp(scores, dim=2)
            seen = lse[:, rows] != float("-inf")
            weights = torch.exp(scores - torch.where(seen, lse[:, rows], 0.0)[:, :, None])
            out[rows] = torch.einsum("hqk,khd->qhd", weights, value).to(q.dtype)
    return out, lse


def naive_fused_infer_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    cu_seqlens_q_host: Sequence[int] | None = None,
    cu_seqlens_k_host: Sequence[int] | None = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each sequence's queries to all keys of the same sequence.

    Args:
        q: Queries of all sequences, back to back.
        k: Keys of all sequences, back to back.
        v: Values, one for each key.
        cu_seqlens_q: Where each sequence's queries begin, and the last one's end.
        cu_seqlens_k: As ``cu_seqlens_q``, for keys and values.
        cu_seqlens_q_host: Taken in the place of ``cu_seqlens_q`` where given.
        cu_seqlens_k_host: Taken in the place of ``cu_seqlens_k`` where given.
        softmax_scale: Factor on the scores; None is the head dim to the power of -1/2.
        return_softmax_lse: Also return the natural log of each softmax denominator, heads first.
    """
    bounds = numbers_of(cu_seqlens_q, cu_seqlens_q_host), numbers_of(cu_seqlens_k, cu_seqlens_k_host)
    out, lse = naive_packed_attention(q, k, v, *bounds, _scale(q, softmax_scale))
    return (out, lse) if return_softmax_lse else out


def naive_fused_infer_attention_varlen_causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    cu_seqlens_q_host: Sequence[int] | None = None,
    cu_seqlens_k_host: Sequence[int] | None = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each sequence's queries to the keys of the same sequence up to their own position.

    Args:
        q: Queries of all sequences, back to back.
        k: Keys of all sequences, back to back.
        v: Values, one for each key.
        cu_seqlens_q: Where each sequence's queries begin, and the last one's end.
        cu_seqlens_k: As ``cu_seqlens_q``, for keys and values.
        cu_seqlens_q_host: Taken in the place of ``cu_seqlens_q`` where given.
        cu_seqlens_k_host: Taken in the place of ``cu_seqlens_k`` where given.
        softmax_scale: Factor on the scores; None is the head dim to the power of -1/2.
        return_softmax_lse: Also return the natural log of each softmax denominator, heads first.
    """
    bounds = numbers_of(cu_seqlens_q, cu_seqlens_q_host), numbers_of(cu_seqlens_k, cu_seqlens_k_host)
    out, lse = naive_packed_attention(q, k, v, *bounds, _scale(q, softmax_scale), causal=True)
    return (out, lse) if return_softmax_lse else out


def numbers_of(boundaries: Tensor, host: Sequence[int] | None) -> list[int]:
    """Return the boundaries as plain ints; the host waits for them unless it has a copy.

    Numpy's integers would compute in their own width: unsigned ones wrap around where a difference is negative.

    Args:
        boundaries: Vector of integers.
        host: Its host copy, or None.
    """
    return cast("list[int]", boundaries.tolist()) if host is None else [int(entry) for entry in host]


def _scale(q: Tensor, softmax_scale: float | None) -> float:
    return q.shape[2] ** -0.5 if softmax_scale is None else float(softmax_scale)
