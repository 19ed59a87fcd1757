"""The entry points as operators of torch, in the namespace ``tensorpact``: importing this module registers them.

Each is called as the entry point of the same name, and checks the same contract in front of the operator, of which a
tracer sees one node. What decodes in place returns the tensors that it was handed, as the entry point does. Those of
flash attention make a new tensor in each call: an operator may not return ``out``, which is therefore refused here.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensorpact import torch_op

from .flash_attention import entry as _flash
from .packed_attention import entry as _packed
from .replayssm import entry as _replayssm
from .sparse_prefill import entry as _sparse

__all__ = [
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "fused_infer_attention_varlen",
    "fused_infer_attention_varlen_causal",
    "fused_recurrent_kda_packed_decode",
    "fused_recurrent_kda_replayssm_decode",
    "sparse_attn_v4_paged_decode",
    "sparse_attn_v4_paged_prefill",
]

# The annotation of a host copy says nothing, so that the contract can: a schema needs a type.
_HOST = {"cu_seqlens_q_host": Sequence[int] | None, "cu_seqlens_k_host": Sequence[int] | None}

sparse_attn_v4_paged_prefill = torch_op(
    "tensorpact::sparse_attn_v4_paged_prefill",
    _sparse.sparse_attn_v4_paged_prefill,
    form="return_lse",
    like="q",
    dtypes=(None, torch.float32),
)
sparse_attn_v4_paged_decode = torch_op(
    "tensorpact::sparse_attn_v4_paged_decode",
    _sparse.sparse_attn_v4_paged_decode,
    form="return_lse",
    like="q",
    dtypes=(None, torch.float32),
)
fused_recurrent_kda_replayssm_decode = torch_op(
    "tensorpact::fused_recurrent_kda_replayssm_decode",
    _replayssm.fused_recurrent_kda_replayssm_decode,
    returns=("out", "initial_state"),
)
fused_recurrent_kda_packed_decode = torch_op(
    "tensorpact::fused_recurrent_kda_packed_decode",
    _replayssm.fused_recurrent_kda_packed_decode,
    returns=("out", "initial_state"),
)
fused_infer_attention_varlen = torch_op(
    "tensorpact::fused_infer_attention_varlen",
    _packed.fused_infer_attention_varlen,
    form="return_softmax_lse",
    dtypes=("q", torch.float32),
    types=_HOST,
)
fused_infer_attention_varlen_causal = torch_op(
    "tensorpact::fused_infer_attention_varlen_causal",
    _packed.fused_infer_attention_varlen_causal,
    form="return_softmax_lse",
    dtypes=("q", torch.float32),
    types=_HOST,
)


# No schema has a type for a function, and none can say that `out` is returned where it is given. The contract allows
# nothing but the default for the others.
_ABSENT = ("q_descale", "k_descale", "v_descale", "score_mod", "aux_tensors", "ver", "out")


def _lengths(
    cache_seqlens: Tensor | int | None,
    q: Tensor | None,
    qv: Tensor | None,
    v_cache: Tensor,
    cu_seqlens_q: Tensor | None,
) -> Tensor | None:
    """Lengths of the rows, one of each sequence where the caller gave one number for all."""
    if cache_seqlens is None or isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    queries = qv if q is None else q
    batch = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q is not None else 0 if queries is None else queries.shape[0]
    return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=v_cache.device)


def _fake(function: Callable[..., Any], values: str) -> Callable[..., Any]:
    """The results of an entry point on tensors without memory.

    Args:
        function: The entry point.
        values: Its parameter that gives dtype, device and the last axis of the result.
    """
    parameters = inspect.signature(function).parameters.values()
    names = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)

    def fake(*args: Any, **_: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        queries = given["qv"] if given["q"] is None else given["q"]
        packed, with_lse = given["cu_seqlens_q"] is not None, given["return_softmax_lse"]
        return _flash.empty_results(queries, given[values], None, packed, with_lse)

    return fake


flash_attn_with_kvcache = torch_op(
    "tensorpact::flash_attn_with_kvcache",
    _flash.flash_attn_with_kvcache,
    form="return_softmax_lse",
    types={"cache_seqlens": "Tensor?", "window_size": tuple[int, int]},
    without=(*_ABSENT, "scheduler_metadata"),
    convert={"cache_seqlens": _lengths},
    fake=_fake(_flash.flash_attn_with_kvcache, "v_cache"),
)
flash_attn_varlen_func = torch_op(
    "tensorpact::flash_attn_varlen_func",
    _flash.flash_attn_varlen_func,
    form="return_softmax_lse",
    types={"window_size": tuple[int, int]},
    without=(*_ABSENT, "page_table"),
    fake=_fake(_flash.flash_attn_varlen_func, "v"),
)
