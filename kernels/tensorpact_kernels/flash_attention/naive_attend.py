"""Scores, masks and softmax of flash attention, in plain torch and for one sequence at a time."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

_SCORES_LIMIT = 1 << 24


@dataclass(frozen=True, slots=True)
class Rules:
    """What a call asks of every score.

    Attributes:
        scale: Factor on the scores.
        left: Keys that a query sees before its own position; negative for all.
        right: Keys that a query sees behind its own position; negative for all.
        chunk: Length of the chunks that attention stays in; 0 for no chunks.
        softcap: Bound that the scores bend towards; 0 for none.
    """

    scale: float
    left: int
    right: int
    chunk: int
    softcap: float


def hides_keys(window_size: tuple[int, int], causal: bool, chunk: int, capacity: int, longest_query: int) -> bool:
    """Whether a call has a mask, once sides of the window that can hide nothing are left out.

    Rotary positions of queries count up only where it has.

    Args:
        window_size: Keys seen on the left and on the right; negative for all.
        causal: Whether no key behind the query's position is seen, whatever the window says of its right side.
        chunk: Length of the chunks that attention stays in; 0 for no chunks.
        capacity: Most keys that a sequence may have.
        longest_query: Most queries that a sequence may have.
    """
    left, right = window_size
    return (
        (0 <= left < capacity - 1) or (0 <= right < longest_query - 1) or (causal and longest_query != 1) or chunk > 0
    )


def visible(rows: Tensor, queries: int, keys: int, seen: int, rules: Rules) -> Tensor:
    """Which keys each query sees.

    Args:
        rows: Places of the queries within their sequence.
        queries: Queries of the sequence.
        keys: Keys of the sequence. The last query stands at the place of the last key.
        seen: Keys to judge, from the first one on.
        rules: The mask that the call asks for.
    """
    place = (rows + (keys - queries))[:, None]
    key = torch.arange(seen, device=rows.device)[None, :]
    mask = (key < keys).expand(rows.shape[0], seen)
    if rules.left >= 0:
        mask = mask & (key >= place - rules.left)
    if rules.right >= 0:
        mask = mask & (key <= place + rules.right)
    if rules.chunk > 0:
        start = torch.div(place, rules.chunk, rounding_mode="floor") * rules.chunk
        mask = mask & (key >= start) & (key < start + rules.chunk)
    return mask


def attend(
    q: Tensor | None,
    qv: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    present: Tensor,
    keys: int,
    sinks: Tensor | None,
    rules: Rules,
) -> tuple[Tensor, Tensor]:
    """Attend the queries of one sequence to its keys, in float32, or in float64 where the arguments are.

    Args:
        q: Queries that meet the keys, or None where values alone are met.
        qv: Queries that meet the values, or None where keys alone are met.
        key: Keys that exist; a key head serves a group of query heads. Not read where ``q`` is None.
        value: Values, one for each key.
        present: Which of these are there to be read; another one hides nothing but itself.
        keys: Length of the sequence, which places the queries; more than ``value`` has where its end does not exist.
        sinks: A logit for each head that joins the softmax without a value, or None.
        rules: Scale, mask and cap.

    Returns:
        The weighted means, and the natural log of each denominator with heads first. A row that sees nothing gets
        zeros, and minus infinity or its sink.
    """
    queries, heads, _ = (cast("Tensor", qv) if q is None else q).shape
    compute = torch.float64 if value.dtype == torch.float64 else torch.float32
    groups = heads // max(1, value.shape[1])
    out = torch.zeros((queries, heads, value.shape[2]), dtype=compute, device=value.device)
    lse = torch.full((heads, queries), float("-inf"), dtype=compute, device=value.device)
    seen = value.shape[0]
    step = max(1, _SCORES_LIMIT // max(1, heads * seen))
    for first in range(0, queries, step):
        rows = torch.arange(first, min(first + step, queries), device=value.device)
        mask = visible(rows, queries, keys, seen, rules) & present
        # What no query sees is left out, since a weight of zero times a NaN is NaN.
        used = mask.any(dim=0).nonzero().flatten()
        mask = mask[:, used]
        # Heads are repeated, not queries folded, so that the group of each head is plain to see.
        wide_value = value[used].to(compute).repeat_interleave(groups, dim=1)
        scores = torch.zeros((heads, rows.shape[0], used.shape[0]), dtype=compute, device=value.device)
        if q is not None and key is not None:
            wide_key = key[used].to(compute).repeat_interleave(groups, dim=1)
            scores += torch.einsum("qhd,khd->hqk", q[rows].to(compute), wide_key)
        if qv is not None:
            scores += torch.einsum("qhd,khd->hqk", qv[rows].to(compute), wide_value)
        scores = scores * rules.scale
        if rules.softcap > 0:
            scores = rules.softcap * torch.tanh(scores / rules.softcap)
        scores = scores.masked_fill(~mask, float("-inf"))
        total = torch.logsumexp(scores, dim=2)
        if sinks is not None:
            total = torch.logaddexp(total, sinks.to(compute)[:, None])
        lse[:, rows] = total
        weights = torch.exp(scores - torch.where(total == float("-inf"), 0.0, total)[:, :, None])
        out[rows] = torch.einsum("hqk,khd->qhd", weights, wide_value)
    return out, lse
