"""Attention with a key-value cache and over packed sequences, in plain torch: what the kernels are compared with.

Half inputs are computed in float32 and float64 inputs in float64, so that upcasting the arguments gives the reference.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from .naive_attend import Rules, attend, hides_keys
from .naive_cache import Cache, rotate

Spans = list[tuple[int, int]]


def naive_kvcache(
    q: Tensor | None,
    k_cache: Tensor | None,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Tensor | None = None,
    *,
    allow_padded_tail: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Append new tokens to the cache in place, then attend; everything as ``flash_attn_with_kvcache`` has it.

    What has no effect on the result is taken and not looked at. A slot, page or row that does not exist is hidden,
    and dropped where it would be written.
    """
    queries = cast("Tensor", qv if q is None else q)
    spans = _spans(queries, cu_seqlens_q)
    batch = len(spans)
    cache = Cache(k_cache, v_cache, page_table, cache_batch_idx)
    filled = _lengths(cache_seqlens, batch, cache.capacity)
    padding = _lengths(cache_leftpad, batch, 0)
    wide = v_cache.shape[-1]
    if softmax_scale is not None:
        scale = float(softmax_scale)
    elif only_qv or q is None:
        scale = wide**-0.5
    else:
        scale = (q.shape[-1] + (0 if qv is None else wide)) ** -0.5
    rules = _rules(scale, causal, window_size, attention_chunk, softcap)

    new = _spans(v, cu_seqlens_k_new) if k is not None and v is not None else [(0, 0)] * batch
    bases = _lengths(rotary_seqlens, batch, 0) if rotary_seqlens is not None else filled
    turned = None if only_qv else q
    if k is not None and v is not None:
        flat_k, flat_v = _flat(k), _flat(v)
        if rotary_cos is not None and rotary_sin is not None:
            longest = (
                queries.shape[1] if cu_seqlens_q is None else sys.maxsize if max_seqlen_q is None else max_seqlen_q
            )
            counts = hides_keys(window_size, causal, attention_chunk or 0, cache.capacity, longest)
            turned = _rotated(turned, spans, rotary_cos, rotary_sin, bases, rotary_interleaved, counts)
            flat_k = cast("Tensor", _rotated(flat_k, new, rotary_cos, rotary_sin, bases, rotary_interleaved, True))
        for sequence, (first, last) in enumerate(new):
            cache.append(sequence, filled[sequence], flat_k[first:last], flat_v[first:last])

    def keys_of(sequence: int) -> tuple[Tensor | None, Tensor, Tensor, int]:
        count = max(0, filled[sequence] - padding[sequence] + new[sequence][1] - new[sequence][0])
        return *cache.read(sequence, padding[sequence], count, keys=not only_qv), count

    result, lse = _attend_all(turned, qv, v_cache, spans, keys_of, sinks, rules)
    return _returned(queries, v_cache, result, lse, out, cu_seqlens_q is not None, return_softmax_lse)


def naive_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Tensor | None = None,
    *,
    allow_padded_tail: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend each sequence's queries to the keys of the same sequence, as ``flash_attn_varlen_func`` has it.

    What has no effect on the result is taken and not looked at. Queries that no sequence uses get zeros and minus
    infinity.
    """
    spans = _used(_spans(q, cu_seqlens_q), seqused_q)
    held = _used(_spans(k, cu_seqlens_k), seqused_k)
    scale = softmax_scale
    if scale is None:
        scale = (q.shape[-1] + (0 if qv is None else v.shape[-1])) ** -0.5
    flat_k, flat_v = _flat(k), _flat(v)

    def keys_of(sequence: int) -> tuple[Tensor | None, Tensor, Tensor, int]:
        first, last = held[sequence]
        value = flat_v[first:last]
        return flat_k[first:last], value, torch.ones(value.shape[0], dtype=torch.bool, device=v.device), last - first

    rules = _rules(float(scale), causal, window_size, attention_chunk, softcap)
    result, lse = _attend_all(None if only_qv else q, qv, v, spans, keys_of, sinks, rules)
    return _returned(q, v, result, lse, out, cu_seqlens_q is not None, return_softmax_lse)


def _attend_all(
    q: Tensor | None,
    qv: Tensor | None,
    v: Tensor,
    spans: Spans,
    keys_of: Callable[[int], tuple[Tensor | None, Tensor, Tensor, int]],
    sinks: Tensor | None,
    rules: Rules,
) -> tuple[Tensor, Tensor]:
    """Every sequence after the other: results with tokens first, and log denominators with heads first."""
    flat_q, flat_qv = (None if x is None else _flat(x) for x in (q, qv))
    tokens, heads, _ = cast("Tensor", flat_qv if flat_q is None else flat_q).shape
    compute = torch.float64 if v.dtype == torch.float64 else torch.float32
    out = torch.zeros((tokens, heads, v.shape[-1]), dtype=compute, device=v.device)
    lse = torch.full((heads, tokens), float("-inf"), dtype=compute, device=v.device)
    for sequence, (first, last) in enumerate(spans):
        rows = slice(first, max(first, last))
        own_q, own_qv = (None if x is None else x[rows] for x in (flat_q, flat_qv))
        out[rows], lse[:, rows] = attend(own_q, own_qv, *keys_of(sequence), sinks, rules)
    return out, lse


def _returned(
    queries: Tensor, v: Tensor, result: Tensor, lse: Tensor, out: Tensor | None, packed: bool, with_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    result = result.reshape(*queries.shape[:-1], v.shape[-1]).to(queries.dtype)
    if out is not None:
        result = out.copy_(result)
    if not with_lse:
        return result
    if not packed:
        lse = lse.reshape(lse.shape[0], *queries.shape[:2]).transpose(0, 1).contiguous()
    return result, lse


def _rotated(
    x: Tensor | None, spans: Spans, cos: Tensor, sin: Tensor, bases: Sequence[int], interleaved: bool, counts: bool
) -> Tensor | None:
    """A rotated copy; positions begin at the base of each sequence, and count up or stay there."""
    if x is None:
        return None
    turned = x.clone()
    flat = _flat(turned)
    for (first, last), base in zip(spans, bases, strict=True):
        steps = torch.arange(max(0, last - first), device=x.device)
        positions = base + (steps if counts else torch.zeros_like(steps))
        flat[first:last] = rotate(flat[first:last], cos, sin, positions, interleaved=interleaved)
    return flat.reshape(x.shape)


def _flat(x: Tensor) -> Tensor:
    """Tokens of all sequences on one axis."""
    return x if x.ndim == 3 else x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _spans(x: Tensor, boundaries: Tensor | None) -> Spans:
    """First and last token of each sequence, the last one excluded, clamped to the tensor."""
    if boundaries is None:
        return [(row * x.shape[1], (row + 1) * x.shape[1]) for row in range(x.shape[0])]
    ends = [min(max(0, end), x.shape[0]) for end in cast("list[int]", boundaries.tolist())]
    return [(begin, max(begin, end)) for begin, end in pairwise(ends)]


def _used(spans: Spans, lengths: Tensor | None) -> Spans:
    """The first tokens of each sequence, as many as are used."""
    used = _lengths(lengths, len(spans), sys.maxsize)
    return [(first, min(last, first + max(0, most))) for (first, last), most in zip(spans, used, strict=True)]


def _rules(
    scale: float, causal: bool, window_size: tuple[int, int], attention_chunk: int | None, softcap: float
) -> Rules:
    return Rules(scale, window_size[0], 0 if causal else window_size[1], attention_chunk or 0, softcap)


def _lengths(given: int | Tensor | None, batch: int, default: int) -> list[int]:
    """One number for each sequence."""
    if isinstance(given, Tensor):
        return cast("list[int]", given.tolist())
    return [default if given is None else int(given)] * batch
