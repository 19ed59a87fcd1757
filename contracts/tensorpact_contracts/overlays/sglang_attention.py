"""Overlays for functions of sglang that this project has entry points for: the same contracts, put on theirs.

The checks of sglang come first, with its classes and texts; behind them those for what it leaves unchecked.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

import tensorpact
from tensorpact.constraints import Contiguous, DenseLast, NamedAxes, OneOf
from tensorpact.integrations import Applied, overlay
from tensorpact_contracts.packed_attention import PACKED_ATTENTION
from tensorpact_contracts.replayssm import PACKED_DECODE, REPLAYSSM_DECODE
from tensorpact_contracts.sparse_prefill import SPARSE_DECODE, SPARSE_PREFILL

_ATTENTION = "sglang.kernels.ops.attention"
_HALF = OneOf(torch.bfloat16, torch.float16)
_SINGLE = OneOf(torch.float32, torch.bfloat16, torch.float16)
_FLOATING = OneOf(torch.float32, torch.bfloat16, torch.float16, torch.float64)
_INDEX = OneOf(torch.int32, torch.int64)
_DENSE = DenseLast(strict=True)
_NAMED = NamedAxes()


@overlay(f"{_ATTENTION}.dsv4.unified_kv_kernels.paged_prefill:sparse_attn_v4_paged_prefill", SPARSE_PREFILL)
def sparse_attn_v4_paged_prefill(
    q: Annotated[Float[Tensor, "T H D"], _HALF],
    unified_kv: Float[Tensor, "P D"],
    kv_indices_prefix: Annotated[Int[Tensor, " NP"], _INDEX],
    kv_indptr_prefix: Annotated[Int[Tensor, " T+1"], _INDEX],
    kv: Float[Tensor, "N D"],
    kv_indices_extend: Annotated[Int[Tensor, " NE"], _INDEX],
    kv_indptr_extend: Annotated[Int[Tensor, " T+1"], _INDEX],
    attn_sink: Float[Tensor, " H"],
    softmax_scale: float,
) -> Float[Tensor, "T H D"]:
    """Sparse attention over a paged pool and the new rows, as sglang computes it."""
    raise NotImplementedError


@overlay(f"{_ATTENTION}.dsv4.unified_kv_kernels.paged_decode:sparse_attn_v4_paged_decode", SPARSE_DECODE)
def sparse_attn_v4_paged_decode(
    q: Annotated[Float[Tensor, "T H D"], _HALF],
    unified_kv: Float[Tensor, "P D"],
    kv_indices: Annotated[Int[Tensor, " NI"], _INDEX],
    kv_indptr: Annotated[Int[Tensor, " T+1"], _INDEX],
    attn_sink: Float[Tensor, " H"],
    softmax_scale: float,
    kv_scales: Float32[Tensor, "P D//64"] | None = None,
) -> Float[Tensor, "T H D"]:
    """Sparse attention over a paged pool, as sglang computes it."""
    raise NotImplementedError


@overlay(f"{_ATTENTION}.helion.kda_replayssm:helion_fused_recurrent_kda_replayssm_decode", REPLAYSSM_DECODE)
def helion_fused_recurrent_kda_replayssm_decode(
    mixed_qkv: Annotated[Float[Tensor, "B C"], _SINGLE, _DENSE],
    a: Annotated[Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"], _SINGLE, Contiguous()],
    b: Annotated[Float[Tensor, "B HV"], _SINGLE, _DENSE],
    A_log: Annotated[Float[Tensor, " HV"], _FLOATING, _DENSE],
    dt_bias: Annotated[Float[Tensor, "HV K"] | Float[Tensor, " HV*K"], _FLOATING, Contiguous()],
    scale: float,
    initial_state: Annotated[Float[Tensor, "slots HV V K"], _SINGLE, _DENSE, _NAMED],
    d_cache: Annotated[Float[Tensor, "slots HV L V"], _SINGLE, _NAMED],
    k_cache: Annotated[Float[Tensor, "slots H L K"], _SINGLE, _NAMED],
    g_cache: Annotated[Float32[Tensor, "slots HV L K"], _NAMED],
    out: Annotated[Float[Tensor, "B 1 HV V"], _SINGLE, Contiguous()],
    ssm_state_indices: Annotated[Int[Tensor, " B"], _INDEX],
    write_pos: Int32[Tensor, " B"],
    force_flush: Int32[Tensor, " B"] | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
) -> tuple[Float[Tensor, "B 1 HV V"], Float[Tensor, "slots HV V K"]]:
    """One decode step from a checkpoint and a ring, as sglang computes it."""
    raise NotImplementedError


@overlay(f"{_ATTENTION}.helion.kda_decode:helion_fused_recurrent_kda_packed_decode", PACKED_DECODE)
def helion_fused_recurrent_kda_packed_decode(
    mixed_qkv: Annotated[Float[Tensor, "B C"], _SINGLE, _DENSE],
    a: Annotated[Float[Tensor, "B HV*K"], _SINGLE, _DENSE],
    b: Annotated[Float[Tensor, "B HV"], _SINGLE, _DENSE],
    A_log: Annotated[Float[Tensor, " HV"], _FLOATING, _DENSE],
    dt_bias: Annotated[Float[Tensor, " HV*K"], _FLOATING, _DENSE],
    scale: float,
    initial_state: Annotated[Float[Tensor, "slots HV V K"], _SINGLE, _DENSE, _NAMED],
    out: Annotated[Float[Tensor, "B 1 HV V"], _SINGLE, Contiguous()],
    ssm_state_indices: Annotated[Int[Tensor, " B"], _INDEX],
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
) -> tuple[Float[Tensor, "B 1 HV V"], Float[Tensor, "slots HV V K"]]:
    """One decode step from the state, as sglang computes it."""
    raise NotImplementedError


@overlay(
    "sglang.multimodal_gen.runtime.layers.attention.backends.ascend_fa:fused_infer_attention_varlen", PACKED_ATTENTION
)
def fused_infer_attention_varlen(
    q: Annotated[Float[Tensor, "Tq Nq D"], _SINGLE],
    k: Annotated[Float[Tensor, "Tk Nkv D"], _SINGLE],
    v: Annotated[Float[Tensor, "Tk Nkv Dv"], _SINGLE],
    cu_seqlens_q: Annotated[Int[Tensor, " B+1"], _INDEX],
    cu_seqlens_k: Annotated[Int[Tensor, " B+1"], _INDEX],
    *,
    cu_seqlens_q_host: Any = None,
    cu_seqlens_k_host: Any = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention over packed sequences, as sglang computes it."""


OVERLAYS: tuple[Callable[..., Any], ...] = (
    sparse_attn_v4_paged_prefill,
    sparse_attn_v4_paged_decode,
    helion_fused_recurrent_kda_replayssm_decode,
    helion_fused_recurrent_kda_packed_decode,
    fused_infer_attention_varlen,
)


def apply(*, packages: Sequence[str] = ("sglang",)) -> tuple[Applied, ...]:
    """Put the contracts on all five functions, now or when sglang imports them.

    Args:
        packages: Imported packages in which other names of them are exchanged too.
    """
    return tuple(tensorpact.apply(made, packages=packages) for made in OVERLAYS)
