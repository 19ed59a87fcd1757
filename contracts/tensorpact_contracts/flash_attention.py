"""Contracts of flash attention: with a key-value cache, and over packed sequences."""

from torch import Tensor

from tensorpact import Contract
from tensorpact.clauses import (
    Clause,
    any_of,
    dtype,
    layout,
    let,
    needs,
    no_overlap,
    present,
    require,
    same_device,
    same_dtype,
    shape,
    together,
)
from tensorpact.clauses import rank as rank_of

from ._backends import triton_forced
from ._flash_attention_errors import (
    BOUNDARIES,
    CACHE_BATCH,
    CACHE_OVERLAP,
    CACHE_SHAPE,
    CAUSAL_WINDOW,
    CHUNK,
    CHUNK_QUERIES,
    COMPANIONS,
    DESCALES,
    DEVICES,
    EMPTY_HEADS,
    EXPANDED,
    HALF_ONLY,
    HEAD_DIM,
    HEAD_GROUPS,
    INT32,
    K_CACHE_LAYOUT,
    K_CACHE_MISSING,
    KEY_SHAPE,
    LENGTH_RANGE,
    LENGTHS_TYPE,
    MAX_LENGTH_Q,
    MAX_LENGTHS,
    MOST_COLUMNS,
    MOST_SPLITS,
    MOST_VALUE_COLUMNS,
    NEW_LENGTHS,
    NEW_PAIR,
    NEW_SHAPE,
    NEW_TOO_LONG,
    NO_QUERIES,
    ON_CUDA,
    ONE_A_SEQUENCE,
    OUT_LAYOUT,
    OUT_OVERLAP,
    PAGE_TABLE_RANK,
    PAGE_TABLE_UNUSED,
    Q_MISSING,
    QUERY_IGNORED,
    QUERY_RANK,
    QUERY_SHAPE,
    QV_MISSING,
    ROTARY_DIM,
    ROTARY_PAIR,
    ROTARY_ROWS,
    ROTARY_SHAPE,
    ROTARY_WITHOUT_KEYS,
    SAME_DTYPE,
    SCALE,
    SEQUENCE_COUNT,
    SINKS,
    SOFTCAP,
    SPLITS,
    UNSUPPORTED,
    V_CACHE_LAYOUT,
    V_CACHE_MISSING,
    WINDOW,
)
from ._flash_attention_number_errors import (
    APPEND_RANGE,
    BOUNDARIES_END,
    BOUNDARIES_ORDER,
    CACHE_ROW_RANGE,
    CACHE_ROW_REPEATED,
    CHUNK_KEYS,
    LEFTPAD_RANGE,
    LENGTHS_RANGE,
    LONGER,
    PAGE_RANGE,
    ROTARY_RANGE,
    USED_RANGE,
)
from ._flash_attention_rules import (
    all_turn,
    chunk_fits,
    first_needed,
    has_axes,
    holds_batch,
    is_cap,
    is_scale,
    is_window,
    length_fits,
    new_tokens_fit,
    rotary_rows,
    turned_rows,
)
from ._flash_attention_values import boundaries, chunks, pages, rotations, rows_of_the_cache, used_keys, used_queries

__all__ = [
    "APPEND_RANGE",
    "BOUNDARIES",
    "BOUNDARIES_END",
    "BOUNDARIES_ORDER",
    "CACHE_BATCH",
    "CACHE_OVERLAP",
    "CACHE_ROW_RANGE",
    "CACHE_ROW_REPEATED",
    "CACHE_SHAPE",
    "CAUSAL_WINDOW",
    "CHUNK",
    "CHUNK_KEYS",
    "CHUNK_QUERIES",
    "COMPANIONS",
    "DESCALES",
    "DEVICES",
    "EMPTY_HEADS",
    "EXPANDED",
    "HALF_ONLY",
    "HEAD_DIM",
    "HEAD_GROUPS",
    "INT32",
    "KEY_SHAPE",
    "KVCACHE",
    "K_CACHE_LAYOUT",
    "K_CACHE_MISSING",
    "LEFTPAD_RANGE",
    "LENGTHS_RANGE",
    "LENGTHS_TYPE",
    "LENGTH_RANGE",
    "LONGER",
    "MAX_LENGTHS",
    "MAX_LENGTH_Q",
    "NEW_LENGTHS",
    "NEW_PAIR",
    "NEW_SHAPE",
    "NEW_TOO_LONG",
    "NO_QUERIES",
    "ONE_A_SEQUENCE",
    "ON_CUDA",
    "OUT_LAYOUT",
    "OUT_OVERLAP",
    "PAGE_RANGE",
    "PAGE_TABLE_RANK",
    "PAGE_TABLE_UNUSED",
    "QUERY_IGNORED",
    "QUERY_RANK",
    "QUERY_SHAPE",
    "QV_MISSING",
    "Q_MISSING",
    "ROTARY_DIM",
    "ROTARY_PAIR",
    "ROTARY_RANGE",
    "ROTARY_ROWS",
    "ROTARY_SHAPE",
    "ROTARY_WITHOUT_KEYS",
    "SAME_DTYPE",
    "SCALE",
    "SEQUENCE_COUNT",
    "SINKS",
    "SOFTCAP",
    "SPLITS",
    "UNSUPPORTED",
    "USED_RANGE",
    "VARLEN",
    "V_CACHE_LAYOUT",
    "V_CACHE_MISSING",
    "WINDOW",
]

_DIMS = {
    "tokens": "sequences and queries of each, or all queries where they lie packed",
    "B": "sequences in the call",
    "H": "query heads on this rank",
    "Hk": "key and value heads on this rank; each serves H / Hk query heads",
    "D": "head dim of queries and keys",
    "Dv": "head dim of values and of the result",
}


def _numbers() -> list[Clause]:
    """What both entry points hold against numbers and options, behind everything about tensors."""
    return [
        require(is_scale, error=SCALE, about="softmax_scale"),
        require(is_cap, error=SOFTCAP, about="softcap"),
        require(is_window, error=WINDOW, about="window_size"),
        require(
            lambda causal, window_size: not causal or window_size[1] <= 0, error=CAUSAL_WINDOW, about="window_size"
        ),
        require(
            lambda attention_chunk: attention_chunk is None or attention_chunk >= 0,
            error=CHUNK,
            about="attention_chunk",
        ),
    ]


def _not_supported(*more: Clause) -> list[Clause]:
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


def _append() -> list[Clause]:
    """New keys and values, and the rotary tables that turn them."""
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


def _rotary() -> list[Clause]:
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


def _known_on_the_host() -> list[Clause]:
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


KVCACHE = Contract(
    "flash_attn_with_kvcache",
    dims={
        **_DIMS,
        "rows": "rows of the cache, or pages where there is a page table",
        "slots": "slots of a row, or tokens of a page",
        "new": "sequences and new tokens of each, or all new tokens where they lie packed",
        "table": "rows of the page table",
        "So": "rows of the rotary tables, one a position",
        "half": "pairs of columns that are rotated",
    },
    binds={"Dv": "v_cache", "Hk": "v_cache", "rows": "v_cache", "slots": "v_cache"},
    mutates=("k_cache", "v_cache", "out"),
    reference="tensorpact_kernels.flash_attention.naive:naive_kvcache",
    clauses=[
        present("v_cache", error=V_CACHE_MISSING),  # 1
        layout("v_cache", error=V_CACHE_LAYOUT),  # 2
        require(lambda k_cache, only_qv: k_cache is not None or only_qv, error=K_CACHE_MISSING, about="k_cache"),  # 3
        layout("k_cache", error=K_CACHE_LAYOUT),  # 4
        require(lambda q, only_qv: q is not None or only_qv, error=Q_MISSING, about="q"),  # 5
        require(lambda q, qv: q is not None or qv is not None, error=NO_QUERIES, about="q"),  # 6
        require(lambda qv, only_qv: qv is not None or not only_qv, error=QV_MISSING, about="qv"),  # 7
        # The kernel's checks from here on.
        dtype("q", error=HALF_ONLY),
        same_dtype("q", "k_cache", error=SAME_DTYPE),
        same_dtype("q", "v_cache", "k_cache", error=SAME_DTYPE),
        dtype("v_cache", error=HALF_ONLY),
        require(lambda v_cache: v_cache.is_cuda or not triton_forced(), error=ON_CUDA, about="v_cache"),
        dtype("page_table", "cu_seqlens_q", error=INT32),
        let(packed=lambda cu_seqlens_q: cu_seqlens_q is not None),
        any_of(
            require(lambda q, packed: has_axes(q, packed), about="q"),
            require(lambda qv, packed: has_axes(qv, packed), about="qv"),
            error=QUERY_RANK,
        ),
        needs("cu_seqlens_q", "max_seqlen_q", error=MAX_LENGTH_Q),
        let(B=lambda cu_seqlens_q, tokens: tokens[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1),
        any_of(
            rank_of("cu_seqlens_q"),
            require(lambda B: B >= 0, about="cu_seqlens_q"),
            error=BOUNDARIES,
        ),
        rank_of("k_cache", "v_cache", error=CACHE_SHAPE),
        rank_of("page_table", error=PAGE_TABLE_RANK),
        require(
            lambda rows, B: rows == B,
            when=lambda page_table, cache_batch_idx: page_table is None and cache_batch_idx is None,
            error=CACHE_BATCH,
            about="v_cache",
        ),
        require(
            lambda table, B: table == B,
            when=lambda cache_batch_idx: cache_batch_idx is None,
            error=CACHE_BATCH,
            about="page_table",
        ),
        any_of(
            require(lambda q: q is None or 0 not in q.shape[-2:], about="q"),
            require(lambda k_cache: k_cache is None or 0 not in k_cache.shape[-2:], about="k_cache"),
            require(lambda v_cache: 0 not in v_cache.shape[-2:], about="v_cache"),
            require(lambda qv: qv is None or 0 not in qv.shape[-2:], about="qv"),
            error=EMPTY_HEADS,
        ),
        any_of(
            require(lambda q: q is None or q.shape[-1] <= MOST_COLUMNS, about="q"),
            require(lambda k_cache: k_cache is None or k_cache.shape[-1] <= MOST_COLUMNS, about="k_cache"),
            require(lambda v_cache: v_cache.shape[-1] <= MOST_VALUE_COLUMNS, about="v_cache"),
            error=HEAD_DIM,
        ),
        require(
            lambda q, qv, v_cache: (qv if q is None else q).shape[-2] % v_cache.shape[-2] == 0,
            error=HEAD_GROUPS,
            about=("v_cache", "q"),
        ),
        let(capacity=lambda v_cache, page_table: v_cache.shape[1] * (1 if page_table is None else page_table.shape[1])),
        shape("k_cache", "v_cache", error=CACHE_SHAPE),
        dtype("cache_seqlens", "cache_leftpad", error=INT32),
        require(lambda cache_seqlens: not isinstance(cache_seqlens, bool), error=LENGTHS_TYPE, about="cache_seqlens"),
        shape("cache_seqlens", "cache_leftpad", error=ONE_A_SEQUENCE),
        same_dtype("q", "v_cache", "out", error=SAME_DTYPE),
        layout("out", error=OUT_LAYOUT),
        shape("out", error=QUERY_SHAPE),
        *_append(),
        same_dtype("q", "v_cache", "qv", error=SAME_DTYPE),
        shape("qv", error=QUERY_SHAPE),
        *_rotary(),
        dtype("cache_batch_idx", error=INT32),
        shape("cache_batch_idx", error=ONE_A_SEQUENCE),
        require(lambda num_splits: num_splits <= MOST_SPLITS, error=SPLITS, about="num_splits"),
        any_of(dtype("sinks"), shape("sinks"), error=SINKS),
        # What they let through.
        same_device(
            "v_cache",
            "q",
            "k_cache",
            "k",
            "v",
            "qv",
            "rotary_cos",
            "rotary_sin",
            "cache_seqlens",
            "cache_batch_idx",
            "cache_leftpad",
            "page_table",
            "cu_seqlens_q",
            "cu_seqlens_k_new",
            "rotary_seqlens",
            "sinks",
            "out",
            error=DEVICES,
        ),
        any_of(needs("rotary_seqlens", "rotary_cos"), needs("cu_seqlens_k_new", "k"), error=COMPANIONS),
        require(
            lambda q, k_cache, only_qv: not only_qv or q is None or k_cache is None,
            error=QUERY_IGNORED,
            about=("q", "k_cache"),
        ),
        *_not_supported(require(lambda scheduler_metadata: scheduler_metadata is None, about="scheduler_metadata")),
        *_numbers(),
        require(
            lambda cache_seqlens, k, capacity: length_fits(cache_seqlens, k, capacity),
            error=LENGTH_RANGE,
            about="cache_seqlens",
        ),
        *_known_on_the_host(),
        require(
            lambda tokens, k, cache_seqlens, cache_leftpad, capacity, attention_chunk: chunk_fits(
                tokens, k, cache_seqlens, cache_leftpad, capacity, attention_chunk
            ),
            error=CHUNK_QUERIES,
            about="attention_chunk",
        ),
        require(
            lambda So, turned, cached, rotary_seqlens: So >= rotary_rows(turned, cached, rotary_seqlens),
            error=ROTARY_ROWS,
            about="rotary_cos",
        ),
        any_of(no_overlap("k_cache"), no_overlap("v_cache"), no_overlap("out"), error=EXPANDED),
        no_overlap("out", "q", "k_cache", "v_cache", "k", "v", "qv", "sinks", error=OUT_OVERLAP),
        no_overlap("k_cache", "v_cache", "k", "v", error=CACHE_OVERLAP),
        no_overlap("v_cache", "k", "v", error=CACHE_OVERLAP),
        no_overlap("k_cache", "q", "qv", when=lambda k: k is not None, error=CACHE_OVERLAP),
        no_overlap("v_cache", "q", "qv", when=lambda k: k is not None, error=CACHE_OVERLAP),
        # Numbers in tensors.
        *boundaries("cu_seqlens_q", lambda tokens: tokens[0], "max_seqlen_q"),
        *boundaries("cu_seqlens_k_new", lambda new: new[0]),
        *rows_of_the_cache(),
        *pages(),
        *rotations(),
        *chunks(),
    ],
)

VARLEN = Contract(
    "flash_attn_varlen_func",
    dims={**_DIMS, "keys": "sequences and keys of each, or all keys where they lie packed"},
    mutates=("out",),
    reference="tensorpact_kernels.flash_attention.naive:naive_varlen",
    clauses=[
        # The first public check asks for a card that this kernel does not need.
        require(
            lambda max_seqlen_q, max_seqlen_k: max_seqlen_q is not None and max_seqlen_k is not None,
            error=MAX_LENGTHS,
            about=("max_seqlen_q", "max_seqlen_k"),
        ),  # 2
        dtype("q", error=HALF_ONLY),
        same_dtype("q", "k", "v", error=SAME_DTYPE),
        require(lambda q: q.is_cuda or not triton_forced(), error=ON_CUDA, about="q"),
        require(lambda page_table: page_table is None, error=PAGE_TABLE_UNUSED, about="page_table"),
        dtype("cu_seqlens_q", "cu_seqlens_k", error=INT32),
        require(lambda q, cu_seqlens_q: q.ndim == (4 if cu_seqlens_q is None else 3), error=QUERY_RANK, about="q"),
        any_of(
            require(lambda k, cu_seqlens_k: has_axes(k, cu_seqlens_k is not None), about="k"),
            require(lambda v, cu_seqlens_k: has_axes(v, cu_seqlens_k is not None), about="v"),
            error=KEY_SHAPE,
        ),
        let(B=lambda cu_seqlens_q, tokens: tokens[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1),
        any_of(
            rank_of("cu_seqlens_q", "cu_seqlens_k"),
            require(lambda cu_seqlens_q: cu_seqlens_q is None or cu_seqlens_q.shape[0] > 0, about="cu_seqlens_q"),
            error=BOUNDARIES,
        ),
        any_of(
            shape("cu_seqlens_k"),
            require(lambda k, cu_seqlens_k, B: cu_seqlens_k is not None or k.shape[0] == B, about="k"),
            error=SEQUENCE_COUNT,
        ),
        any_of(
            require(lambda q: q is None or 0 not in q.shape[-2:], about="q"),
            require(lambda k: 0 not in k.shape[-2:], about="k"),
            require(lambda v: 0 not in v.shape[-2:], about="v"),
            error=EMPTY_HEADS,
        ),
        any_of(
            require(lambda q: q.shape[-1] <= MOST_COLUMNS, about="q"),
            require(lambda v: v.shape[-1] <= MOST_VALUE_COLUMNS, about="v"),
            error=HEAD_DIM,
        ),
        require(lambda q, v: q.shape[-2] % v.shape[-2] == 0, error=HEAD_GROUPS, about=("v", "q")),
        shape("k", "v", error=KEY_SHAPE),
        dtype("seqused_q", "seqused_k", error=INT32),
        shape("seqused_q", "seqused_k", error=ONE_A_SEQUENCE),
        same_dtype("q", "out", error=SAME_DTYPE),
        layout("out", error=OUT_LAYOUT),
        shape("out", error=QUERY_SHAPE),
        same_dtype("q", "qv", error=SAME_DTYPE),
        shape("qv", error=QUERY_SHAPE),
        require(lambda qv, only_qv: qv is not None or not only_qv, error=QV_MISSING, about="qv"),
        require(lambda num_splits: num_splits <= MOST_SPLITS, error=SPLITS, about="num_splits"),
        any_of(dtype("sinks"), shape("sinks"), error=SINKS),
        # What they let through.
        same_device(
            "q",
            "k",
            "v",
            "cu_seqlens_q",
            "cu_seqlens_k",
            "seqused_q",
            "seqused_k",
            "qv",
            "sinks",
            "out",
            error=DEVICES,
        ),
        *_not_supported(),
        *_numbers(),
        no_overlap("out", error=EXPANDED),
        no_overlap("out", "q", "k", "v", "qv", "sinks", error=OUT_OVERLAP),
        # Numbers in tensors.
        *boundaries("cu_seqlens_q", lambda tokens: tokens[0], "max_seqlen_q", lambda seqused_q: seqused_q is None),
        *boundaries("cu_seqlens_k", lambda keys: keys[0], "max_seqlen_k", lambda seqused_k: seqused_k is None),
        *used_queries(),
        *used_keys(),
    ],
)
