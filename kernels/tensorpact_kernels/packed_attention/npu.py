"""The vendor operator of an NPU behind packed attention.

No such device was at hand: the call and what comes back are tested with an operator registered in its place.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from tensorpact import contract
from tensorpact_contracts.packed_attention import NPU_SOFTMAX_LSE

_MASK_SIZE = 2048
_CAUSAL_FROM_THE_RIGHT = 3


def packed_attention_npu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds_q: Sequence[int],
    bounds_k: Sequence[int],
    softmax_scale: float,
    *,
    causal: bool = False,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Call the operator on the sequences that are not empty.

    Args:
        q: Queries of all sequences, back to back.
        k: Keys of all sequences, back to back.
        v: Values, one for each key.
        bounds_q: Where each sequence's queries begin, and the last one's end.
        bounds_k: As ``bounds_q``, for keys and values.
        softmax_scale: Factor on the scores.
        causal: Hide from a query the keys behind it, where the last query sees the last key.
        return_lse: Also return the natural log of each softmax denominator, heads first.

    Raises:
        RuntimeError: The operator's log denominators have another shape than its documentation says.
    """
    tokens, heads, _ = q.shape
    kept = [at for at in range(1, len(bounds_q)) if bounds_q[at] > bounds_q[at - 1]]
    if not kept:
        lse = q.new_empty((heads, 0), dtype=torch.float32) if return_lse else None
        return q.new_empty((tokens, heads, v.shape[2])), lse
    options: dict[str, Any] = {}
    if causal:
        # The operator takes a mask of this size whatever the lengths, and shifts it along by itself.
        hidden = q.new_ones((_MASK_SIZE, _MASK_SIZE), dtype=torch.bool).triu(1)
        options = {"atten_mask": hidden, "sparse_mode": _CAUSAL_FROM_THE_RIGHT}
    out, lse = torch.ops.npu.npu_fused_infer_attention_score(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        actual_seq_lengths=[int(bounds_q[at]) for at in kept],
        actual_seq_lengths_kv=[int(bounds_k[at]) for at in kept],
        num_heads=heads,
        num_key_value_heads=k.shape[1],
        input_layout="TND",
        scale=softmax_scale,
        softmax_lse_flag=return_lse,
        **options,
    )
    return out, heads_first_lse(lse, out) if return_lse else None


@contract(NPU_SOFTMAX_LSE)
def heads_first_lse(
    softmax_lse: Float32[Tensor, "Tq Nq 1"], out: Float[Tensor, "Tq Nq Dv"]
) -> Float32[Tensor, "Nq Tq"]:
    """Turn the operator's log denominators into those of the entry point: heads first, dense.

    Args:
        softmax_lse: What the operator returned.
        out: Its result, for the sizes.

    Raises:
        RuntimeError: The shape is not the operator's documented one.
    """
    return softmax_lse.squeeze(2).t().contiguous()
