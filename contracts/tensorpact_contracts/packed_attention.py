"""Contracts of attention over packed sequences, bidirectional and causal, with the public checks of the first."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tensorpact import Contract, DocumentedError
from tensorpact._values.judging import may_wait
from tensorpact.clauses import (
    Clause,
    any_of,
    dtype,
    ends_at,
    nondecreasing,
    present,
    rank,
    require,
    same_device,
    same_dim,
    same_dtype,
    same_empty,
    shape,
    starts_at,
    values,
)

from ._backends import npu_forced
from ._values import fits_float, holds_ints, host_values, is_sized

MOST_TOKENS = 2**30
#: The operator of an NPU takes boundaries from the host, so that a call waits for them in any case.
WAITS = ("npu",)

LAYOUT = DocumentedError(
    "requires-token-head-dim-layout",
    ValueError,
    "NPU packed attention requires q, k, and v in [T, N, D] layout; invalid tensors: {names}",
)
SAME_NPU = DocumentedError(
    "requires-one-device",
    ValueError,
    "NPU packed attention requires q, k, and v on the same NPU; invalid tensors: {names}",
)
SAME_DTYPE = DocumentedError(
    "requires-one-dtype", ValueError, "NPU packed attention requires q, k, and v with the same dtype"
)
KEY_VALUE_COUNTS = DocumentedError(
    "key-value-count-mismatch",
    ValueError,
    "NPU packed attention requires matching K/V token and head counts",
)
HEAD_DIMS = DocumentedError(
    "query-key-head-dim-mismatch",
    ValueError,
    "NPU packed attention requires matching Q/K head dimensions",
)
BOUNDARIES_MISSING = DocumentedError("cu-seqlens-required", ValueError, "{name} is required for NPU packed attention")
BOUNDARIES_FORM = DocumentedError("cu-seqlens-rank-or-dtype", ValueError, "{name} must be a 1D int32 or int64 tensor")
HOST_LENGTH = DocumentedError("host-copy-length", ValueError, "{name} and its host copy must have the same length")
BOUNDARIES_START = DocumentedError(
    "cu-seqlens-start", ValueError, "{name} must start with 0 and contain at least one sequence"
)
BOUNDARIES_END = DocumentedError(
    "cu-seqlens-end",
    ValueError,
    "{name} must end at the packed token count {total_tokens}, got {last}",
    fields={"total_tokens": lambda limit: limit},
)
BOUNDARIES_ORDER = DocumentedError("cu-seqlens-order", ValueError, "{name} must be non-decreasing")
BATCH = DocumentedError("batch-mismatch", ValueError, "cu_seqlens_q and cu_seqlens_k must describe the same batch")
EMPTY_ON_ONE_SIDE = DocumentedError(
    "sequence-empty-on-one-side",
    NotImplementedError,
    "NPU packed attention does not support a sequence that is empty only on the query or key/value side",
)
LSE_SHAPE = DocumentedError(
    "unexpected-lse-shape",
    RuntimeError,
    "Unexpected Ascend TND softmax LSE shape: expected {(Tq, Nq, 1)}, got {tuple(softmax_lse.shape)}",
)

HEAD_GROUPS = DocumentedError(
    "head-counts",
    ValueError,
    "q has {Nq} heads and k and v have {Nkv}: the query heads must be a multiple, and neither may be 0",
)
NO_COLUMNS = DocumentedError(
    "head-dim-zero", ValueError, "head dims must be at least 1, got D={D} for q and k and Dv={Dv} for v"
)
FLOATING = DocumentedError(
    "dtype-not-supported", TypeError, "q, k and v must be float16, bfloat16 or float32, got {q.dtype}"
)
HOST_INTS = DocumentedError("host-copy-not-integers", TypeError, "{name} must be a plain sequence of integers")
HOST_DIFFERS = DocumentedError("host-copy-differs", ValueError, "{name} and its host copy hold different boundaries")
BOUNDARIES_DEVICE = DocumentedError(
    "cu-seqlens-device",
    ValueError,
    "boundaries must be on the CPU or on the device of q, {q.device}; elsewhere: {names}",
)
SCALE = DocumentedError(
    "scale-not-positive", ValueError, "softmax_scale must be None or a finite number above 0, got {softmax_scale}"
)
NO_BACKWARD = DocumentedError(
    "no-backward", RuntimeError, "packed attention has no backward pass, but a gradient is asked for: {names}"
)
TOO_MANY_TOKENS = DocumentedError(
    "too-many-tokens", ValueError, "at most 2**30 packed tokens, got {Tq} for q and {Tk} for k and v"
)


def _agrees(tensor: Tensor, host: Sequence[int] | None) -> bool:
    # A copy saves the wait for a device, so a tensor in device memory is compared where calls wait in any case.
    entries = host_values(tensor) if host is not None and (tensor.is_cpu or may_wait()) else None
    return host is None or entries is None or list(host) == list(entries)


def _is_reachable(q: Tensor, boundaries: Tensor) -> bool:
    return boundaries.is_cpu or boundaries.device == q.device


def _asks_for_a_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _query_boundaries() -> list[Clause]:
    """The public checks of the query boundaries, in their order."""
    return [
        present("cu_seqlens_q", error=BOUNDARIES_MISSING),
        any_of(rank("cu_seqlens_q"), dtype("cu_seqlens_q"), error=BOUNDARIES_FORM),
        require(
            lambda cu_seqlens_q_host: cu_seqlens_q_host is None or is_sized(cu_seqlens_q_host),
            error=HOST_INTS,
            about="cu_seqlens_q_host",
        ),
        require(
            lambda cu_seqlens_q, cu_seqlens_q_host: (
                cu_seqlens_q_host is None or len(cu_seqlens_q_host) == cu_seqlens_q.shape[0]
            ),
            error=HOST_LENGTH,
            about="cu_seqlens_q",
        ),
        require(
            lambda cu_seqlens_q_host: cu_seqlens_q_host is None or holds_ints(cu_seqlens_q_host),
            error=HOST_INTS,
            about="cu_seqlens_q_host",
        ),
        any_of(
            require(lambda cu_seqlens_q: cu_seqlens_q.shape[0] >= 2, about="cu_seqlens_q"),
            values("cu_seqlens_q", starts_at(0), reads=WAITS),
            error=BOUNDARIES_START,
        ),
        values("cu_seqlens_q", ends_at("Tq"), reads=WAITS, error=BOUNDARIES_END),
        values("cu_seqlens_q", nondecreasing(), reads=WAITS, error=BOUNDARIES_ORDER),
    ]


def _key_boundaries() -> list[Clause]:
    """The public checks of the key boundaries, in their order."""
    return [
        present("cu_seqlens_k", error=BOUNDARIES_MISSING),
        any_of(rank("cu_seqlens_k"), dtype("cu_seqlens_k"), error=BOUNDARIES_FORM),
        require(
            lambda cu_seqlens_k_host: cu_seqlens_k_host is None or is_sized(cu_seqlens_k_host),
            error=HOST_INTS,
            about="cu_seqlens_k_host",
        ),
        require(
            lambda cu_seqlens_k, cu_seqlens_k_host: (
                cu_seqlens_k_host is None or len(cu_seqlens_k_host) == cu_seqlens_k.shape[0]
            ),
            error=HOST_LENGTH,
            about="cu_seqlens_k",
        ),
        require(
            lambda cu_seqlens_k_host: cu_seqlens_k_host is None or holds_ints(cu_seqlens_k_host),
            error=HOST_INTS,
            about="cu_seqlens_k_host",
        ),
        any_of(
            require(lambda cu_seqlens_k: cu_seqlens_k.shape[0] >= 2, about="cu_seqlens_k"),
            values("cu_seqlens_k", starts_at(0), reads=WAITS),
            error=BOUNDARIES_START,
        ),
        values("cu_seqlens_k", ends_at("Tk"), reads=WAITS, error=BOUNDARIES_END),
        values("cu_seqlens_k", nondecreasing(), reads=WAITS, error=BOUNDARIES_ORDER),
    ]


def _contract(name: str, reference: str) -> Contract:
    """The public checks in their order, then what they let through."""
    return Contract(
        name,
        dims={
            "Tq": "query tokens of all sequences",
            "Tk": "key and value tokens of all sequences",
            "Nq": "query heads",
            "Nkv": "key and value heads; each serves Nq / Nkv query heads",
            "D": "head dim of queries and keys",
            "Dv": "head dim of values and of the result",
            "B": "sequences, empty ones included",
        },
        reference=reference,
        clauses=[
            rank("q", "k", "v", error=LAYOUT),  # 1
            any_of(
                require(lambda q: not npu_forced() or q.device.type == "npu", about="q"),
                require(lambda k: not npu_forced() or k.device.type == "npu", about="k"),
                require(lambda v: not npu_forced() or v.device.type == "npu", about="v"),
                same_device("q", "k", "v"),
                error=SAME_NPU,
            ),  # 2
            same_dtype("q", "k", "v", error=SAME_DTYPE),  # 3
            shape("v", axes="Tk Nkv", error=KEY_VALUE_COUNTS),  # 4: k says both
            same_dim("D", "q", "k", error=HEAD_DIMS),  # 5
            *_query_boundaries(),  # 6
            *_key_boundaries(),  # 7
            shape("cu_seqlens_k", axes="B+1", error=BATCH),  # 8
            values("cu_seqlens_q", "cu_seqlens_k", same_empty(), reads=WAITS, error=EMPTY_ON_ONE_SIDE),  # 9
            # Holes of the public checks from here on.
            require(lambda Nq, Nkv: Nq > 0 and Nkv > 0 and Nq % Nkv == 0, error=HEAD_GROUPS, about=("q", "k")),
            require(lambda D, Dv: D > 0 and Dv > 0, error=NO_COLUMNS, about=("q", "v")),
            dtype("q", error=FLOATING),  # k and v have the dtype of q by now
            require(
                lambda cu_seqlens_q, cu_seqlens_q_host: _agrees(cu_seqlens_q, cu_seqlens_q_host),
                error=HOST_DIFFERS,
                about="cu_seqlens_q",
            ),
            require(
                lambda cu_seqlens_k, cu_seqlens_k_host: _agrees(cu_seqlens_k, cu_seqlens_k_host),
                error=HOST_DIFFERS,
                about="cu_seqlens_k",
            ),
            any_of(
                require(lambda q, cu_seqlens_q: _is_reachable(q, cu_seqlens_q), about="cu_seqlens_q"),
                require(lambda q, cu_seqlens_k: _is_reachable(q, cu_seqlens_k), about="cu_seqlens_k"),
                error=BOUNDARIES_DEVICE,
            ),
            require(
                lambda softmax_scale: softmax_scale is None or (softmax_scale > 0 and fits_float(softmax_scale)),
                error=SCALE,
                about="softmax_scale",
            ),
            any_of(
                require(lambda q: not _asks_for_a_gradient(q), about="q"),
                require(lambda k: not _asks_for_a_gradient(k), about="k"),
                require(lambda v: not _asks_for_a_gradient(v), about="v"),
                error=NO_BACKWARD,
            ),
            require(lambda Tq, Tk: Tq <= MOST_TOKENS and Tk <= MOST_TOKENS, error=TOO_MANY_TOKENS, about=("q", "k")),
        ],
    )


PACKED_ATTENTION = _contract(
    "fused_infer_attention_varlen",
    "tensorpact_kernels.packed_attention.naive:naive_fused_infer_attention_varlen",
)
PACKED_ATTENTION_CAUSAL = _contract(
    "fused_infer_attention_varlen_causal",
    "tensorpact_kernels.packed_attention.naive:naive_fused_infer_attention_varlen_causal",
)
NPU_SOFTMAX_LSE = Contract(
    "heads_first_lse",
    dims={"Tq": "query tokens of all sequences", "Nq": "query heads", "Dv": "head dim of the result"},
    binds={"Tq": "out", "Nq": "out"},
    clauses=[shape("softmax_lse", error=LSE_SHAPE)],  # 10
)
