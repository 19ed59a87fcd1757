"""Attention over packed sequences, as the public function has it, and its causal form."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tensorpact import backend, contract
from tensorpact.constraints import OneOf
from tensorpact_contracts.packed_attention import PACKED_ATTENTION, PACKED_ATTENTION_CAUSAL
from tensorpact_kernels._dispatch import runs_triton

from . import naive

FLOATING = OneOf(torch.float16, torch.bfloat16, torch.float32)
INDEX = OneOf(torch.int32, torch.int64)

if TYPE_CHECKING:
    HostBoundaries = Sequence[int] | None
else:
    # The contract says what is wrong with a host copy, so the hint lets everything reach it.
    HostBoundaries = object


@contract(PACKED_ATTENTION)
def fused_infer_attention_varlen(
    q: Annotated[Float[Tensor, "Tq Nq D"], FLOATING],
    k: Annotated[Float[Tensor, "Tk Nkv D"], FLOATING],
    v: Annotated[Float[Tensor, "Tk Nkv Dv"], FLOATING],
    cu_seqlens_q: Annotated[Int[Tensor, " B+1"], INDEX],
    cu_seqlens_k: Annotated[Int[Tensor, " B+1"], INDEX],
    *,
    cu_seqlens_q_host: HostBoundaries = None,
    cu_seqlens_k_host: HostBoundaries = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
) -> Float[Tensor, "Tq Nq Dv"] | tuple[Float[Tensor, "Tq Nq Dv"], Float[Tensor, "Nq Tq"]]:
    """Attend each sequence's queries to all keys of the same sequence; sequences lie packed, one behind the other.

    Query and key sides have boundaries of their own, so this is self attention or cross attention. A sequence may be
    empty, on both sides then.

    Boundaries are checked where their numbers can be read without waiting for a device: in the host copy if there is
    one, else in a CPU tensor. With a copy and a CPU tensor both are read, and must agree. The copy is what a CPU and an
    NPU go by. A CUDA kernel goes by the tensor, so that nothing is uploaded and a captured graph may change it.

    Args:
        q: Queries of all sequences, any strides.
        k: Keys of all sequences, any strides; one key head serves the same number of neighbouring query heads.
        v: Values, one for each key, any strides; their head dim is their own.
        cu_seqlens_q: Where each sequence's queries begin, and where the last one ends; on the device of ``q`` or on
            the CPU, from where it is uploaded.
        cu_seqlens_k: As ``cu_seqlens_q``, for keys and values.
        cu_seqlens_q_host: The numbers of ``cu_seqlens_q`` on the host; saves a wait where they are needed there.
        cu_seqlens_k_host: The numbers of ``cu_seqlens_k`` on the host.
        softmax_scale: Factor on the scores; None is ``D ** -0.5``.
        return_softmax_lse: Also return the natural log of each softmax denominator.

    Returns:
        A new tensor in the dtype of ``q``, and in float32 the log denominators if asked for, heads first.

    Raises:
        ValueError: Shapes, devices, boundaries or the scale are wrong.
        TypeError: A dtype or a host copy is of the wrong kind.
        NotImplementedError: A sequence is empty on one side only.
        RuntimeError: A gradient is asked for.
    """
    return _attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_host, cu_seqlens_k_host, softmax_scale, return_softmax_lse
    )


@contract(PACKED_ATTENTION_CAUSAL)
def fused_infer_attention_varlen_causal(
    q: Annotated[Float[Tensor, "Tq Nq D"], FLOATING],
    k: Annotated[Float[Tensor, "Tk Nkv D"], FLOATING],
    v: Annotated[Float[Tensor, "Tk Nkv Dv"], FLOATING],
    cu_seqlens_q: Annotated[Int[Tensor, " B+1"], INDEX],
    cu_seqlens_k: Annotated[Int[Tensor, " B+1"], INDEX],
    *,
    cu_seqlens_q_host: HostBoundaries = None,
    cu_seqlens_k_host: HostBoundaries = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
) -> Float[Tensor, "Tq Nq Dv"] | tuple[Float[Tensor, "Tq Nq Dv"], Float[Tensor, "Nq Tq"]]:
    """Attend each sequence's queries to the keys of the same sequence up to their own position.

    Checked as ``fused_infer_attention_varlen``. Pass the same boundaries twice for self attention. Where a sequence
    has more keys than queries, as behind a cached prefix, the last query sees the last key and each one before it one
    key less. Where it has more queries than keys, the first ones see none: they get zeros, and minus infinity as log
    denominator.

    Args:
        q: Queries of all sequences, any strides.
        k: Keys of all sequences, any strides; one key head serves the same number of neighbouring query heads.
        v: Values, one for each key, any strides; their head dim is their own.
        cu_seqlens_q: Where each sequence's queries begin, and where the last one ends; on the device of ``q`` or on
            the CPU, from where it is uploaded.
        cu_seqlens_k: As ``cu_seqlens_q``, for keys and values.
        cu_seqlens_q_host: The numbers of ``cu_seqlens_q`` on the host; saves a wait where they are needed there.
        cu_seqlens_k_host: The numbers of ``cu_seqlens_k`` on the host.
        softmax_scale: Factor on the scores; None is ``D ** -0.5``.
        return_softmax_lse: Also return the natural log of each softmax denominator.

    Returns:
        A new tensor in the dtype of ``q``, and in float32 the log denominators if asked for, heads first.

    Raises:
        ValueError: Shapes, devices, boundaries or the scale are wrong.
        TypeError: A dtype or a host copy is of the wrong kind.
        NotImplementedError: A sequence is empty on one side only.
        RuntimeError: A gradient is asked for.
    """
    return _attend(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        cu_seqlens_q_host,
        cu_seqlens_k_host,
        softmax_scale,
        return_softmax_lse,
        causal=True,
    )


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    host_q: Sequence[int] | None,
    host_k: Sequence[int] | None,
    softmax_scale: float | None,
    return_lse: bool,
    *,
    causal: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    tokens, heads, dim = q.shape
    scale = dim**-0.5 if softmax_scale is None else float(softmax_scale)
    if q.is_meta:
        out = q.new_empty((tokens, heads, v.shape[2]))
        lse = q.new_empty((heads, tokens), dtype=torch.float32) if return_lse else None
    elif runs_triton(q):
        from .launch import packed_attention_triton

        # A copy from pageable memory is staged before the call returns, so the host does not wait for the device.
        bounds = cu_q.to(q.device, non_blocking=True), cu_k.to(q.device, non_blocking=True)
        out, lse = packed_attention_triton(q, k, v, *bounds, scale, causal=causal, return_lse=return_lse)
    elif backend() != "naive" and q.device.type == "npu":
        from .npu import packed_attention_npu

        numbers = naive.numbers_of(cu_q, host_q), naive.numbers_of(cu_k, host_k)
        out, lse = packed_attention_npu(q, k, v, *numbers, scale, causal=causal, return_lse=return_lse)
    else:
        run = naive.naive_fused_infer_attention_varlen_causal if causal else naive.naive_fused_infer_attention_varlen
        return run(
            q,
            k,
            v,
            cu_q,
            cu_k,
            cu_seqlens_q_host=host_q,
            cu_seqlens_k_host=host_k,
            softmax_scale=softmax_scale,
            return_softmax_lse=return_lse,
        )
    return out if lse is None else (out, lse)
