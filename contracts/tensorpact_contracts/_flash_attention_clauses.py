"""Groups of clauses that the contracts of flash attention are put together from."""

from torch import Tensor

from tensorpact.clauses import Clause, any_of, dtype, let, needs, require, same_dtype, shape, together

from ._flash_attention_errors import (
    BOUNDARIES,
    CAUSAL_WINDOW,
    CHUNK,
    DESCALES,
    INT32,
    NEW_LENGTHS,
    NEW_PAIR,
    NEW_SHAPE,
    NEW_TOO_LONG,
    ONE_A_SEQUENCE,
    ROTARY_DIM,
    ROTARY_PAIR,
    ROTARY_SHAPE,
    ROTARY_WITHOUT_KEYS,
    SAME_DTYPE,
    SCALE,
    SOFTCAP,
    UNSUPPORTED,
    WINDOW,
)
from ._flash_attention_rules import (
    all_turn,
    first_needed,
    holds_batch,
    is_cap,
    is_scale,
    is_window,
    new_tokens_fit,
    turned_rows,
)

DIMS = {
    "tokens": "sequences and queries of each, or all queries where they lie packed",
    "B": "sequences in the call",
    "H": "query heads on this rank",
    "Hk": "key and value heads on this rank; each serves H / Hk query heads",
    "D": "head dim of queries and keys",
    "Dv": "head dim of values and of the result",
}


def numbers() -> list[Clause]:
    """What both entry points hold against numbers and options, behind everything about tensors."""
    return [
        require(is_scale, error=SCALE, about="softmax_scale"),
        require(is_cap, error=SOFTCAP, about="softcap"),
        require(is_window, error=WINDOW, about="window_size"),
        require(
            lambda causal, window_size: not causal or window_size[1] <= 0,
            error=CAUSAL_WINDOW,
            about="window_size",
        ),
        require(
            lambda attention_chunk: attention_chunk is None or attention_chunk >= 0,
            error=CHUNK,
            about="attention_chunk",
        ),
    ]


def not_supported(*more: Clause) -> list[Clause]:
    """What the public functions take and ignore, or what belongs to kernels of theirs.

    Args:
        *more: Clauses on what one function alone takes.
    """
    return [
        any_of(
            require(lambda q_descale: q_descale is None, about="q_descale"),
            require(lambda k_descale: k_descale is None, about="k_descale"),
            require(lambda v_descale: v_descale is None, about="v_descale"),
            error=DESCALES,
        ),
        any_of(
            *more,
            require(lambda score_mod: score_mod is None, about="score_mod"),
            require(lambda aux_tensors: aux_tensors is None, about="aux_tensors"),
            require(lambda ver: ver == 3, about="ver"),
            error=UNSUPPORTED,
        ),
    ]


def append() -> list[Clause]:
    """New keys and values."""
    return [
        together("k", "v", error=NEW_PAIR),
        needs("k", "cache_seqlens", error=NEW_LENGTHS),
        same_dtype("q", "v_cache", "k", "v", error=SAME_DTYPE),
        dtype("cu_seqlens_k_new", error=INT32),
        shape("cu_seqlens_k_new", error=BOUNDARIES),
        any_of(
            require(lambda k, cu_seqlens_k_new, B: holds_batch(k, cu_seqlens_k_new is not None, B), about="k"),
            require(lambda v, cu_seqlens_k_new, B: holds_batch(v, cu_seqlens_k_new is not None, B), about="v"),
            shape("k", "v"),
            error=NEW_SHAPE,
        ),
        require(lambda k, capacity, B: k is None or new_tokens_fit(k, capacity, B), error=NEW_TOO_LONG, about="k"),
    ]


def rotary() -> list[Clause]:
    """The rotary tables, and what they say of the call as a whole."""
    return [
        together("rotary_cos", "rotary_sin", error=ROTARY_PAIR),
        needs("rotary_cos", "k", error=ROTARY_WITHOUT_KEYS),
        same_dtype("q", "v_cache", "rotary_cos", "rotary_sin", error=SAME_DTYPE),
        shape("rotary_cos", "rotary_sin", error=ROTARY_SHAPE),
        require(
            lambda rotary_cos, k: (
                rotary_cos is None or (2 * rotary_cos.shape[1] <= k.shape[-1] and rotary_cos.shape[1] % 8 == 0)
            ),
            error=ROTARY_DIM,
            about="rotary_cos",
        ),
        dtype("rotary_seqlens", error=INT32),
        shape("rotary_seqlens", error=ONE_A_SEQUENCE),
    ]


def known_on_the_host() -> list[Clause]:
    """What shapes and ints tell of every sequence at once, for clauses on the numbers of each."""
    return [
        let(
            cached=lambda cache_seqlens, capacity: (
                capacity if cache_seqlens is None else -1 if isinstance(cache_seqlens, Tensor) else int(cache_seqlens)
            )
        ),
        let(
            hidden=lambda tokens, k, cached, cache_leftpad, window_size, attention_chunk, capacity: first_needed(
                tokens, k, cached, cache_leftpad, window_size, attention_chunk, capacity
            )
        ),
        let(
            turned=lambda rotary_cos, tokens, k, k_cache, only_qv, causal, window_size, attention_chunk, capacity: (
                0
                if rotary_cos is None
                else turned_rows(tokens, k, k_cache, only_qv, causal, window_size, attention_chunk, capacity)
            )
        ),
        let(
            all_turn=lambda rotary_cos, turned, tokens, k, k_cache, only_qv, B, allow_padded_tail: (
                rotary_cos is not None and all_turn(turned, tokens, k, k_cache, only_qv, B, allow_padded_tail)
            )
        ),
        let(
            reach=lambda So, all_turn, cached, capacity: So if all_turn else max(So, capacity if cached < 0 else cached)
        ),
    ]
