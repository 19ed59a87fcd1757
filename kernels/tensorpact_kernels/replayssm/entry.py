"""Decoding with Kimi Delta Attention, as the public functions have it; everything is written in place."""

from typing import Annotated

import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from tensorpact import contract
from tensorpact.constraints import Contiguous, DenseLast, NamedAxes, OneOf
from tensorpact_contracts.replayssm import PACKED_DECODE, REPLAYSSM_DECODE
from tensorpact_kernels._dispatch import runs_triton

from .naive import naive_packed_decode_, naive_replayssm_decode_

HALF_OR_SINGLE = OneOf(torch.float32, torch.bfloat16, torch.float16)
FLOATING = OneOf(torch.float32, torch.bfloat16, torch.float16, torch.float64)
INDEX = OneOf(torch.int32, torch.int64)
#: As the public checks have it: the stride must be 1 even where it is never used.
DENSE = DenseLast(strict=True)
NAMED = NamedAxes()


@contract(REPLAYSSM_DECODE)
def fused_recurrent_kda_replayssm_decode(
    mixed_qkv: Annotated[Float[Tensor, "B C"], HALF_OR_SINGLE, DENSE],
    a: Annotated[Float[Tensor, "B HV K"] | Float[Tensor, "B HV*K"], HALF_OR_SINGLE, Contiguous()],
    b: Annotated[Float[Tensor, "B HV"], HALF_OR_SINGLE, DENSE],
    A_log: Annotated[Float[Tensor, " HV"], FLOATING, DENSE],
    dt_bias: Annotated[Float[Tensor, "HV K"] | Float[Tensor, " HV*K"], FLOATING, Contiguous()],
    scale: float,
    initial_state: Annotated[Float[Tensor, "slots HV V K"], HALF_OR_SINGLE, DENSE, NAMED],
    d_cache: Annotated[Float[Tensor, "slots HV L V"], HALF_OR_SINGLE, NAMED],
    k_cache: Annotated[Float[Tensor, "slots H L K"], HALF_OR_SINGLE, NAMED],
    g_cache: Annotated[Float32[Tensor, "slots HV L K"], NAMED],
    out: Annotated[Float[Tensor, "B 1 HV V"], HALF_OR_SINGLE, Contiguous()],
    ssm_state_indices: Annotated[Int[Tensor, " B"], INDEX],
    write_pos: Int32[Tensor, " B"],
    force_flush: Int32[Tensor, " B"] | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
) -> tuple[Float[Tensor, "B 1 HV V"], Float[Tensor, "slots HV V K"]]:
    """Decode one token a row from a checkpointed state and a ring of the tokens since then.

    The state is read on every step and written only on a flush: when the ring is full, or where ``force_flush`` asks
    for it. In between, the token's correction, key and log decay are appended to the rings. Rows with a negative slot
    are padding; so are, here, rows whose slot or cursor is out of range. A slot may stand in one row of a call only.

    Args:
        mixed_qkv: Projected and convolved token: queries of all heads, then their keys, then the values. Not
            interleaved head by head, which has the same width. Any row stride.
        a: Raw forget-gate logits of each key channel.
        b: Raw write-strength logits.
        A_log: Log decay rates.
        dt_bias: Bias of the forget gate.
        scale: Factor on the query, after its normalisation; normally ``K ** -0.5``.
        initial_state: Checkpoints, the value axis before the key axis. With ``K == V`` no check of shapes sees a
            state in the other order; ``tensorpact.name_axes(pool, "slots HV V K")`` where the pool is made lets this
            one see it.
        d_cache: Ring of corrected values, any strides. Its dtype and that of ``k_cache`` agree, and need not be the
            state's.
        k_cache: Ring of normalised, unscaled keys, one for each key head; any strides.
        g_cache: Ring of natural-log decays, any strides.
        out: Output, written for every row; padding rows get zeros.
        ssm_state_indices: Slot of each row.
        write_pos: Tokens that a row's ring holds, from 0 to ``L - 1``. Never written: afterwards the caller sets it
            to 0 where the row flushed and to one more elsewhere.
        force_flush: Any value but 0 flushes the row on this step.
        use_qk_l2norm_in_kernel: Normalise queries and keys, with 1e-6 added to the sum of squares.
        lower_bound: Smallest log decay of the bounded sigmoid gate, below 0; None for the softplus gate.
        round_beta: Round the write strength to the dtype of ``b``, as the public kernel does. It drifts: kept in
            float32 otherwise.

    Returns:
        ``out`` and ``initial_state``, the objects that were passed in.

    Raises:
        ValueError: Shapes, layouts, devices or numbers are wrong.
        TypeError: A dtype is wrong in a way the public code does not look at.
        RuntimeError: ``a`` does not divide into rows, or Triton was asked for without a GPU.
    """
    if mixed_qkv.is_meta:
        return out, initial_state
    if runs_triton(mixed_qkv):
        from .launch import replayssm_decode_triton as run
    else:
        run = naive_replayssm_decode_
    run(
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        scale,
        initial_state,
        d_cache,
        k_cache,
        g_cache,
        out,
        ssm_state_indices,
        write_pos,
        force_flush,
        use_qk_l2norm_in_kernel,
        lower_bound,
        round_beta=round_beta,
    )
    return out, initial_state


@contract(PACKED_DECODE)
def fused_recurrent_kda_packed_decode(
    mixed_qkv: Annotated[Float[Tensor, "B C"], HALF_OR_SINGLE, DENSE],
    a: Annotated[Float[Tensor, "B HV*K"], HALF_OR_SINGLE, DENSE],
    b: Annotated[Float[Tensor, "B HV"], HALF_OR_SINGLE, DENSE],
    A_log: Annotated[Float[Tensor, " HV"], FLOATING, DENSE],
    dt_bias: Annotated[Float[Tensor, " HV*K"], FLOATING, DENSE],
    scale: float,
    initial_state: Annotated[Float[Tensor, "slots HV V K"], HALF_OR_SINGLE, DENSE, NAMED],
    out: Annotated[Float[Tensor, "B 1 HV V"], HALF_OR_SINGLE, Contiguous()],
    ssm_state_indices: Annotated[Int[Tensor, " B"], INDEX],
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    round_beta: bool = False,
) -> tuple[Float[Tensor, "B 1 HV V"], Float[Tensor, "slots HV V K"]]:
    """Decode one token a row, with the state read and written on every step.

    Rows with a negative slot are padding; so are, here, rows whose slot is beyond the pool. A slot may stand in one
    row of a call only.

    Args:
        mixed_qkv: Projected and convolved token: queries of all heads, then their keys, then the values. Not
            interleaved head by head, which has the same width. Any row stride.
        a: Raw forget-gate logits, the key channels of each value head side by side.
        b: Raw write-strength logits.
        A_log: Log decay rates.
        dt_bias: Bias of the forget gate, in the order of ``a``.
        scale: Factor on the query, after its normalisation; normally ``K ** -0.5``.
        initial_state: States, the value axis before the key axis. With ``K == V`` no check of shapes sees a state in
            the other order; ``tensorpact.name_axes(pool, "slots HV V K")`` where the pool is made lets this one see it.
        out: Output, written for every row; padding rows get zeros.
        ssm_state_indices: Slot of each row.
        use_qk_l2norm_in_kernel: Normalise queries and keys, with 1e-6 added to the sum of squares.
        lower_bound: Smallest log decay of the bounded sigmoid gate, below 0; None for the softplus gate.
        round_beta: Round the write strength to the dtype of ``b``, as the public replay kernel does.

    Returns:
        ``out`` and ``initial_state``, the objects that were passed in.

    Raises:
        ValueError: Shapes, layouts, devices or numbers are wrong.
        TypeError: A dtype is wrong in a way the public code does not look at.
        RuntimeError: Triton was asked for without a GPU.
    """
    if mixed_qkv.is_meta:
        return out, initial_state
    if runs_triton(mixed_qkv):
        from .launch import packed_decode_triton as run
    else:
        run = naive_packed_decode_
    run(
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        scale,
        initial_state,
        out,
        ssm_state_indices,
        use_qk_l2norm_in_kernel,
        lower_bound,
        round_beta=round_beta,
    )
    return out, initial_state
