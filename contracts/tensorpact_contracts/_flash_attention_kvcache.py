"""Contract of attention with a key-value cache."""

from tensorpact import Contract
from tensorpact.clauses import (
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
)
from tensorpact.clauses import rank as rank_of

from ._backends import triton_forced
from ._flash_attention_clauses import DIMS, append, known_on_the_host, not_supported, numbers, rotary
from ._flash_attention_errors import (
    BOUNDARIES,
    CACHE_BATCH,
    CACHE_OVERLAP,
    CACHE_SHAPE,
    CHUNK_QUERIES,
    COMPANIONS,
    DEVICES,
    EMPTY_HEADS,
    EXPANDED,
    HALF_ONLY,
    HEAD_DIM,
    HEAD_GROUPS,
    INT32,
    K_CACHE_LAYOUT,
    K_CACHE_MISSING,
    LENGTH_RANGE,
    LENGTHS_TYPE,
    MAX_LENGTH_Q,
    MOST_COLUMNS,
    MOST_SPLITS,
    MOST_VALUE_COLUMNS,
    NO_QUERIES,
    ON_CUDA,
    ONE_A_SEQUENCE,
    OUT_LAYOUT,
    OUT_OVERLAP,
    PAGE_TABLE_RANK,
    Q_MISSING,
    QUERY_IGNORED,
    QUERY_RANK,
    QUERY_SHAPE,
    QV_MISSING,
    ROTARY_ROWS,
    SAME_DTYPE,
    SINKS,
    SPLITS,
    V_CACHE_LAYOUT,
    V_CACHE_MISSING,
)
from ._flash_attention_positions import chunks, rotations
from ._flash_attention_rules import chunk_fits, has_axes, length_fits, rotary_rows
from ._flash_attention_values import boundaries, pages, rows_of_the_cache

KVCACHE = Contract(
    "flash_attn_with_kvcache",
    dims={
        **DIMS,
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
    family="flash_attention",
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
        *append(),
        same_dtype("q", "v_cache", "qv", error=SAME_DTYPE),
        shape("qv", error=QUERY_SHAPE),
        *rotary(),
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
        *not_supported(require(lambda scheduler_metadata: scheduler_metadata is None, about="scheduler_metadata")),
        *numbers(),
        require(
            lambda cache_seqlens, k, capacity: length_fits(cache_seqlens, k, capacity),
            error=LENGTH_RANGE,
            about="cache_seqlens",
        ),
        *known_on_the_host(),
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
