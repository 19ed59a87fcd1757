"""Contract of attention over packed sequences."""

from tensorpact import Contract
from tensorpact.clauses import any_of, dtype, layout, let, no_overlap, require, same_device, same_dtype, shape
from tensorpact.clauses import rank as rank_of

from ._backends import triton_forced
from ._flash_attention_clauses import DIMS, not_supported, numbers
from ._flash_attention_errors import (
    BOUNDARIES,
    DEVICES,
    EMPTY_HEADS,
    EXPANDED,
    HALF_ONLY,
    HEAD_DIM,
    HEAD_GROUPS,
    INT32,
    KEY_SHAPE,
    MAX_LENGTHS,
    MOST_COLUMNS,
    MOST_SPLITS,
    MOST_VALUE_COLUMNS,
    ON_CUDA,
    ONE_A_SEQUENCE,
    OUT_LAYOUT,
    OUT_OVERLAP,
    PAGE_TABLE_UNUSED,
    QUERY_RANK,
    QUERY_SHAPE,
    QV_MISSING,
    SAME_DTYPE,
    SEQUENCE_COUNT,
    SINKS,
    SPLITS,
)
from ._flash_attention_rules import has_axes
from ._flash_attention_values import boundaries, used_keys, used_queries

VARLEN = Contract(
    "flash_attn_varlen_func",
    dims={**DIMS, "keys": "sequences and keys of each, or all keys where they lie packed"},
    mutates=("out",),
    reference="tensorpact_kernels.flash_attention.naive:naive_varlen",
    family="flash_attention",
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
        *not_supported(),
        *numbers(),
        no_overlap("out", error=EXPANDED),
        no_overlap("out", "q", "k", "v", "qv", "sinks", error=OUT_OVERLAP),
        # Numbers in tensors.
        *boundaries("cu_seqlens_q", lambda tokens: tokens[0], "max_seqlen_q", lambda seqused_q: seqused_q is None),
        *boundaries("cu_seqlens_k", lambda keys: keys[0], "max_seqlen_k", lambda seqused_k: seqused_k is None),
        *used_queries(),
        *used_keys(),
    ],
)
