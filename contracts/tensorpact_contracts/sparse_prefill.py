"""Contracts of the sparse attention over a paged pool: prefill with two sources, decode with one."""

import torch

from tensorpact import Contract, DocumentedError
from tensorpact.clauses import (
    Clause,
    at_least,
    at_most,
    dtype,
    less_than,
    nondecreasing,
    require,
    same_device,
    same_dim,
    same_dtype,
    shape,
    values,
    within,
)
from tensorpact.clauses import rank as rank_of

from ._backends import triton_forced
from ._values import fits_float

GROUP_SIZE = 64
FP8 = torch.float8_e4m3fn

REQUIRES_CUDA = DocumentedError(
    "requires-cuda-or-hip-tensors",
    RuntimeError,
    "Triton sparse_attn_v4_paged_prefill requires CUDA/HIP tensors",
)
EXPECTS_HALF = DocumentedError(
    "expects-fp16-or-bf16-q", RuntimeError, "sparse_attn_v4_paged_prefill expects fp16/bf16 q, got {q.dtype}"
)
UNIFIED_KV_DTYPE = DocumentedError(
    "unified-kv-dtype-mismatch", RuntimeError, "unified_kv dtype mismatch: kv={unified_kv.dtype}, q={q.dtype}"
)
KV_DTYPE = DocumentedError("kv-dtype-mismatch", RuntimeError, "kv dtype mismatch: kv={kv.dtype}, q={q.dtype}")
HEAD_DIM_MISMATCH = DocumentedError(
    "head-dim-mismatch",
    RuntimeError,
    "head_dim mismatch: unified_kv={unified_kv.size(-1)}, kv={kv.size(-1)}",
)
POOL_RANK = DocumentedError(
    "rank-of-q-or-pool",
    ValueError,
    "q has the axes [T, H, D], a pool of rows has [rows, D]; wrong number of axes: {names}",
)
QUERY_HEAD_DIM = DocumentedError(
    "query-head-dim-mismatch",
    ValueError,
    "head_dim mismatch: q={q.size(-1)}, unified_kv={unified_kv.size(-1)}",
)
SINK_LENGTH = DocumentedError(
    "attn-sink-length",
    ValueError,
    "attn_sink must hold one logit for each of the {H} heads of q, got shape {list(attn_sink.shape)}",
)
INDPTR_LENGTH = DocumentedError(
    "indptr-length",
    ValueError,
    "{name} must hold T + 1 = {T + 1} offsets for the {T} query tokens of q",
)
INDICES_RANK = DocumentedError("indices-rank", ValueError, "{names} must be a flat list of rows, one axis")
INDEX_DTYPE = DocumentedError(
    "index-dtype", TypeError, "row indices and offsets are int32 or int64; of another dtype: {names}"
)
DEVICES = DocumentedError(
    "devices-differ", ValueError, "every tensor must be on the device of q, {q.device}; elsewhere: {names}"
)
SCALE = DocumentedError(
    "softmax-scale-not-positive",
    ValueError,
    "softmax_scale must be finite and above 0, got {softmax_scale}",
)

INDPTR_VALUES = DocumentedError(
    "indptr-out-of-order",
    ValueError,
    "{name}[{position}] is {value}, expected {expected}: offsets never decrease and stay inside the index list",
)
INDEX_RANGE = DocumentedError(
    "index-out-of-range",
    ValueError,
    "{name}[{position}] is {value}, but there are {limit} rows to take; a negative index is skipped",
)

DECODE_INDEX_RANGE = DocumentedError(
    "decode-index-out-of-range",
    ValueError,
    "{name}[{position}] is {value}, expected {expected}: paged decode takes a row for every entry and skips none",
)

DECODE_REQUIRES_CUDA = DocumentedError(
    "decode-requires-cuda-or-hip-tensors",
    RuntimeError,
    "Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors",
)
DECODE_EXPECTS_HALF = DocumentedError(
    "decode-expects-fp16-or-bf16-q", RuntimeError, "sparse_attn_v4_paged_decode expects fp16/bf16 q, got {q.dtype}"
)
SCALES_WITHOUT_FP8 = DocumentedError(
    "kv-scales-without-fp8-pool",
    RuntimeError,
    "kv_scales supplied but unified_kv is {unified_kv.dtype}, expected {fp8}",
    fields={"fp8": lambda unified_kv: FP8},
)
SCALES_DTYPE = DocumentedError("kv-scales-dtype", RuntimeError, "kv_scales must be fp32, got {kv_scales.dtype}")
GROUP_SIZE_DIVIDES = DocumentedError(
    "head-dim-not-divisible-by-group-size",
    RuntimeError,
    "D={D} must be divisible by GROUP_SIZE={group}",
    fields={"group": lambda unified_kv: GROUP_SIZE},
)
SCALES_SHAPE = DocumentedError(
    "kv-scales-shape",
    RuntimeError,
    "kv_scales shape {tuple(kv_scales.shape)} does not match expected ({P}, {D // 64})",
)


def _positive(softmax_scale: float) -> bool:
    return softmax_scale > 0 and fits_float(softmax_scale)


def _ordered(indptr: str, entries: str) -> Clause:
    """What the offsets of an index list must be: the kernel reads what lies between them."""
    return values(indptr, at_least(0), nondecreasing(), at_most(entries), error=INDPTR_VALUES)


def _skippable(indices: str, indptr: str, rows: str) -> Clause:
    return values(indices, less_than(rows), active=indptr, padding="negative", error=INDEX_RANGE)


def _shared(*names: str) -> list[Clause]:
    """Clauses behind the public checks that both entry points have, after their index tensors."""
    return [
        same_device("q", *names, error=DEVICES),
        require(_positive, error=SCALE, about="softmax_scale"),
    ]


SPARSE_PREFILL = Contract(
    "sparse_attn_v4_paged_prefill",
    dims={
        "T": "query tokens in this forward",
        "H": "query heads on this rank",
        "D": "head dim: one row is key and value at once",
        "P": "rows of the paged pool, one a slot",
        "N": "rows of the flat kv, the new tokens of this forward",
        "NP": "entries of the prefix index list, allocated for the worst case",
        "NE": "entries of the extend index list, allocated for the worst case",
    },
    reference="tensorpact_kernels.sparse_prefill.naive:naive_sparse_prefill",
    clauses=[
        require(lambda q: q.is_cuda or not triton_forced(), error=REQUIRES_CUDA, about="q"),
        dtype("q", error=EXPECTS_HALF),
        same_dtype("q", "unified_kv", error=UNIFIED_KV_DTYPE),
        same_dtype("q", "kv", error=KV_DTYPE),
        same_dim("D", "unified_kv", "kv", error=HEAD_DIM_MISMATCH),
        rank_of("q", "unified_kv", "kv", error=POOL_RANK),
        same_dim("D", "q", "unified_kv", error=QUERY_HEAD_DIM),
        shape("attn_sink", error=SINK_LENGTH),
        shape("kv_indptr_prefix", error=INDPTR_LENGTH),
        shape("kv_indptr_extend", error=INDPTR_LENGTH),
        rank_of("kv_indices_prefix", "kv_indices_extend", error=INDICES_RANK),
        dtype("kv_indices_prefix", "kv_indptr_prefix", "kv_indices_extend", "kv_indptr_extend", error=INDEX_DTYPE),
        *_shared(
            "unified_kv",
            "kv_indices_prefix",
            "kv_indptr_prefix",
            "kv",
            "kv_indices_extend",
            "kv_indptr_extend",
            "attn_sink",
        ),
        _ordered("kv_indptr_prefix", "NP"),
        _skippable("kv_indices_prefix", "kv_indptr_prefix", "P"),
        _ordered("kv_indptr_extend", "NE"),
        _skippable("kv_indices_extend", "kv_indptr_extend", "N"),
    ],
)

SPARSE_DECODE = Contract(
    "sparse_attn_v4_paged_decode",
    dims={
        "T": "query tokens, one a sequence in plain decode",
        "H": "query heads on this rank",
        "D": "head dim: one row is key and value at once",
        "P": "rows of the paged pool, one a slot",
        "NI": "entries of the index list",
    },
    binds={"D": "unified_kv"},
    reference="tensorpact_kernels.sparse_prefill.naive:naive_sparse_decode",
    clauses=[
        require(lambda q: q.is_cuda or not triton_forced(), error=DECODE_REQUIRES_CUDA, about="q"),
        dtype("q", error=DECODE_EXPECTS_HALF),
        require(
            lambda unified_kv: unified_kv.dtype is FP8,
            when=lambda kv_scales: kv_scales is not None,
            error=SCALES_WITHOUT_FP8,
            about="unified_kv",
        ),
        dtype("kv_scales", error=SCALES_DTYPE),
        require(
            lambda D: D % GROUP_SIZE == 0,
            when=lambda kv_scales: kv_scales is not None,
            error=GROUP_SIZE_DIVIDES,
            about="unified_kv",
        ),
        shape("kv_scales", error=SCALES_SHAPE),
        same_dtype("q", "unified_kv", when=lambda kv_scales: kv_scales is None, error=UNIFIED_KV_DTYPE),
        rank_of("q", "unified_kv", error=POOL_RANK),
        same_dim("D", "q", "unified_kv", error=QUERY_HEAD_DIM),
        shape("attn_sink", error=SINK_LENGTH),
        shape("kv_indptr", error=INDPTR_LENGTH),
        rank_of("kv_indices", error=INDICES_RANK),
        dtype("kv_indices", "kv_indptr", error=INDEX_DTYPE),
        *_shared("unified_kv", "kv_indices", "kv_indptr", "attn_sink", "kv_scales"),
        _ordered("kv_indptr", "NI"),
        values("kv_indices", within(0, "P"), active="kv_indptr", error=DECODE_INDEX_RANGE),
    ],
)
