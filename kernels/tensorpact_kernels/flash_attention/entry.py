"""Attention with a key-value cache, and over packed sequences, as the public functions have them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from tensorpact import contract
from tensorpact.constraints import DenseLast, OneOf
from tensorpact_contracts.flash_attention import KVCACHE, VARLEN
from tensorpact_kernels._dispatch import runs_triton

from .naive import naive_kvcache, naive_varlen

HALF = OneOf(torch.float16, torch.bfloat16)
LOGITS = OneOf(torch.bfloat16, torch.float16, torch.float32)
DENSE = DenseLast()

if TYPE_CHECKING:
    Lengths = Tensor | int | None
    Window = tuple[int, int]
else:
    # The contract says what is wrong with a bool or with a window, so the hints let them reach it.
    Lengths = Int32[Tensor, " B"] | int | bool | None
    Window = object


@contract(KVCACHE)
def flash_attn_with_kvcache(
    q: Annotated[Float[Tensor, "*tokens H D"], HALF] | None,
    k_cache: Annotated[Float[Tensor, "rows slots Hk D"], DENSE] | None,
    v_cache: Annotated[Float[Tensor, "rows slots Hk Dv"], HALF, DENSE],
    k: Float[Tensor, "*new Hk D"] | None = None,
    v: Float[Tensor, "*new Hk Dv"] | None = None,
    qv: Float[Tensor, "*tokens H Dv"] | None = None,
    rotary_cos: Float[Tensor, "So half"] | None = None,
    rotary_sin: Float[Tensor, "So half"] | None = None,
    cache_seqlens: Lengths = None,
    cache_batch_idx: Int32[Tensor, " B"] | None = None,
    cache_leftpad: Int32[Tensor, " B"] | None = None,
    page_table: Int32[Tensor, "table _"] | None = None,
    cu_seqlens_q: Int32[Tensor, " B+1"] | None = None,
    cu_seqlens_k_new: Int32[Tensor, " B+1"] | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Int32[Tensor, " B"] | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int | None = None,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Annotated[Float[Tensor, " H"], LOGITS] | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Annotated[Float[Tensor, "*tokens H Dv"], DENSE] | None = None,
    *,
    allow_padded_tail: bool = False,
) -> Float[Tensor, "*tokens H Dv"] | tuple[Float[Tensor, "*tokens H Dv"], Float[Tensor, "..."]]:
    """Attend queries to a cache of keys and values, after appending new ones to it in place.

    Key ``j`` of a sequence lies in slot ``cache_leftpad + j`` of its row, or with a page table in the page that the
    table names for that slot. The last query of a sequence stands at the place of its last key, new ones included;
    masks count from there. A query that sees no key gets zeros, and minus infinity (or its sink) as log denominator:
    with ``causal`` and more queries than keys these are the first ones.

    Caches may be written, so neither may repeat itself nor share memory with the other. Where keys and values are one
    tensor, pass it as ``v_cache`` alone, the queries as ``qv``, and ``only_qv=True``.

    Args:
        q: Queries, in three axes where ``cu_seqlens_q`` says which sequence they belong to; any strides. None with
            ``only_qv``.
        k_cache: Keys, in rows or in pages. None with ``only_qv``; nothing is allocated in its place.
        v_cache: Values, alike; a head dim of their own.
        k: Keys to append, rotated on the way if there are rotary tables; in three axes with ``cu_seqlens_k_new``.
        v: Values to append.
        qv: Queries that score the values; added to what ``q`` scores.
        rotary_cos: Cosines, a row for each position and a column for each rotated pair of columns.
        rotary_sin: Sines.
        cache_seqlens: Tokens in each row before the call, left padding included; one number for all. None: full rows.
        cache_batch_idx: Row of each sequence; its own number by default.
        cache_leftpad: Slots in front of the first token of each row.
        page_table: Pages of each row, of any size. Columns behind the last token are not read.
        cu_seqlens_q: Where the queries of each sequence begin, and where the last ones end.
        cu_seqlens_k_new: The same for ``k`` and ``v``.
        max_seqlen_q: At least the longest of the packed queries.
        rotary_seqlens: Position of the first new token of each sequence, instead of ``cache_seqlens``.
        q_descale: Must be None, as fp8 is not supported.
        k_descale: Must be None.
        v_descale: Must be None.
        softmax_scale: Factor on the scores. None is ``D ** -0.5``, ``(D + Dv) ** -0.5`` with ``qv``, and ``Dv ** -0.5``
            with ``only_qv``.
        causal: Hide the keys behind a query's own place.
        window_size: Keys seen before and behind a query's own place, -1 for all.
        attention_chunk: Length of the stretches, counted from the first key, that attention does not leave; None or 0
            for one stretch. This changes the result.
        softcap: Scores bend towards this bound on either side; 0 for none.
        rotary_interleaved: Rotate neighbouring columns; False for a column and the one half the width behind it. New
            keys are at consecutive positions. So are queries if a mask is left once sides of the window that can hide
            nothing are dropped (left at least capacity - 1, right at least the longest query - 1); else all queries of
            a sequence are at its first position.
        scheduler_metadata: Must be None.
        num_splits: Most pieces that the keys are cut into; 0 or less lets the kernel choose.
        pack_gqa: No effect on the result, and none here.
        only_qv: Score ``qv`` against the values alone. Keys are then appended if there is a ``k_cache``, rotated as
            tables say, and never read; queries are not rotated.
        sm_margin: No effect on the result, and none here.
        return_softmax_lse: Also return the natural log of each softmax denominator, the sink included.
        sinks: A natural-log logit a head that joins the softmax without a value; neither scaled nor capped.
        score_mod: Must be None.
        aux_tensors: Must be None.
        ver: Must be 3.
        out: Written and returned if given.
        allow_padded_tail: Let boundaries end before the last token, as padded batches have it. Queries behind them get
            zeros either way, and new tokens are dropped; this is about what checks of the boundaries accept.

    Returns:
        The result, and if asked for the log denominators in float32: batch, heads, queries, or heads and queries where
        these are packed. The public function appends two workspaces, which are left out.

    Raises:
        ValueError: A tensor is missing, or sizes, numbers or groups of arguments are wrong.
        AssertionError: The last axis of a cache is strided.
        RuntimeError: The public kernel refuses the call as well.
        TypeError: An argument is of a wrong kind.
        NotImplementedError: Something is asked for that is not supported.
    """
    if v_cache.is_meta:
        return empty_results(q if qv is None else qv, v_cache, out, cu_seqlens_q is not None, return_softmax_lse)
    if runs_triton(v_cache):
        from .launch import launch_kvcache as run
    else:
        run = naive_kvcache
    return run(
        q,
        k_cache,
        v_cache,
        k,
        v,
        qv,
        rotary_cos,
        rotary_sin,
        cache_seqlens,
        cache_batch_idx,
        cache_leftpad,
        page_table,
        cu_seqlens_q,
        cu_seqlens_k_new,
        max_seqlen_q,
        rotary_seqlens,
        q_descale,
        k_descale,
        v_descale,
        softmax_scale,
        causal,
        window_size,
        attention_chunk,
        softcap,
        rotary_interleaved,
        scheduler_metadata,
        num_splits,
        pack_gqa,
        only_qv,
        sm_margin,
        return_softmax_lse,
        sinks,
        score_mod,
        aux_tensors,
        ver,
        out,
    )


@contract(VARLEN)
def flash_attn_varlen_func(
    q: Annotated[Float[Tensor, "*tokens H D"], HALF],
    k: Float[Tensor, "*keys Hk D"],
    v: Float[Tensor, "*keys Hk Dv"],
    cu_seqlens_q: Int32[Tensor, " B+1"] | None,
    cu_seqlens_k: Int32[Tensor, " B+1"] | None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Int32[Tensor, " B"] | None = None,
    seqused_k: Int32[Tensor, " B"] | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Float[Tensor, "*tokens H Dv"] | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    only_qv: bool = False,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    sinks: Annotated[Float[Tensor, " H"], LOGITS] | None = None,
    score_mod: Callable[..., Any] | None = None,
    aux_tensors: Any = None,
    ver: int = 3,
    out: Annotated[Float[Tensor, "*tokens H Dv"], DENSE] | None = None,
    *,
    allow_padded_tail: bool = False,
) -> Float[Tensor, "*tokens H Dv"] | tuple[Float[Tensor, "*tokens H Dv"], Float[Tensor, "..."]]:
    """Attend each sequence's queries to the keys of the same sequence; either side is packed, or padded to four axes.

    The last query of a sequence stands at the place of its last key; masks count from there. A query that sees no key
    gets zeros, and minus infinity (or its sink) as log denominator. So does one that no sequence uses.

    Args:
        q: Queries, any strides; in three axes with ``cu_seqlens_q``, in four without.
        k: Keys, any strides; in three axes with ``cu_seqlens_k``, in four without.
        v: Values, one for each key; a head dim of their own.
        cu_seqlens_q: Where the queries of each sequence begin, and where the last ones end.
        cu_seqlens_k: The same for keys and values.
        max_seqlen_q: At least the longest of the queries; required.
        max_seqlen_k: At least the longest of the keys; required.
        seqused_q: How many of each sequence's queries count, from the first one on; all by default.
        seqused_k: The same for keys.
        page_table: Must be None.
        softmax_scale: Factor on the scores. None is ``D ** -0.5``, and ``(D + Dv) ** -0.5`` with ``qv``, also under
            ``only_qv``.
        causal: Hide the keys behind a query's own place.
        qv: Queries that score the values; added to what ``q`` scores.
        q_descale: Must be None, as fp8 is not supported.
        k_descale: Must be None.
        v_descale: Must be None.
        window_size: Keys seen before and behind a query's own place, -1 for all.
        attention_chunk: Length of the stretches, counted from the first key, that attention does not leave; 0 for one
            stretch. This changes the result.
        softcap: Scores bend towards this bound on either side; 0 for none.
        num_splits: Most pieces that the keys are cut into; 0 or less lets the kernel choose.
        pack_gqa: No effect on the result, and none here.
        only_qv: Score ``qv`` against the values alone; ``q`` and ``k`` are not read.
        sm_margin: No effect on the result, and none here.
        return_softmax_lse: Also return the natural log of each softmax denominator, the sink included.
        sinks: A natural-log logit a head that joins the softmax without a value; neither scaled nor capped.
        score_mod: Must be None.
        aux_tensors: Must be None.
        ver: Must be 3.
        out: Written and returned if given.
        allow_padded_tail: Let boundaries end before the last token, as padded batches have it. Queries behind them get
            zeros either way; this is about what checks of the boundaries accept.

    Returns:
        The result, and if asked for the log denominators in float32: heads and queries, or batch, heads, queries where
        these are padded.

    Raises:
        ValueError: Something is missing, or sizes, numbers or groups of arguments are wrong.
        RuntimeError: The public kernel refuses the call as well.
        TypeError: An argument is of a wrong kind.
        NotImplementedError: Something is asked for that is not supported.
    """
    if q.is_meta:
        return empty_results(q, v, out, cu_seqlens_q is not None, return_softmax_lse)
    if runs_triton(q):
        from .launch import launch_varlen as run
    else:
        run = naive_varlen
    return run(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        seqused_q,
        seqused_k,
        page_table,
        softmax_scale,
        causal,
        qv,
        q_descale,
        k_descale,
        v_descale,
        window_size,
        attention_chunk,
        softcap,
        num_splits,
        pack_gqa,
        only_qv,
        sm_margin,
        return_softmax_lse,
        sinks,
        score_mod,
        aux_tensors,
        ver,
        out,
    )


def empty_results(
    queries: Tensor | None, v: Tensor, out: Tensor | None, packed: bool, with_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Results of a call on tensors without memory.

    Args:
        queries: What attends, in three axes where packed.
        v: Values or their cache; gives dtype, device and the last axis.
        out: The result, if given.
        packed: Whether the queries of all sequences lie one behind the other.
        with_lse: Whether log denominators are asked for.
    """
    tokens = list(cast("Tensor", queries).shape[:-1])
    result = v.new_empty((*tokens, v.shape[-1])) if out is None else out
    if not with_lse:
        return result
    shape = [tokens[1], tokens[0]] if packed else [tokens[0], tokens[2], tokens[1]]
    return result, v.new_empty(shape, dtype=torch.float32)
