"""The entry points as operators of torch, in the namespace ``tensorpact``: importing this module registers them.

Each is called as the entry point of the same name, and checks the same contract in front of the operator, of which a
tracer sees one node. What decodes in place returns the tensors that it was handed, as the entry point does.
"""

from collections.abc import Sequence

import torch

from tensorpact import torch_op

from .packed_attention import entry as _packed
from .replayssm import entry as _replayssm
from .sparse_prefill import entry as _sparse

__all__ = [
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
