"""Sums over packed sequences."""

from jaxtyping import Float, Int64
from torch import Tensor


def segment_sum(
    x: Float[Tensor, "T D"], cu_seqlens: Int64[Tensor, " B+1"], initial: Float[Tensor, "B D"] | None = None
) -> Float[Tensor, "B D"]:
    """Sum the rows of each sequence, which lie packed one behind the other, onto what there was before."""
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1:
        raise ValueError(f"segment_sum: cu_seqlens must be a vector of boundaries, got {list(cu_seqlens.shape)}")
    if int(cu_seqlens[-1]) != x.shape[0]:
        raise ValueError(f"segment_sum: cu_seqlens ends at {int(cu_seqlens[-1])}, x has {x.shape[0]} rows")
    if initial is not None and initial.shape[-1] != x.shape[-1]:
        raise RuntimeError(f"segment_sum: initial has {initial.shape[-1]} columns, x has {x.shape[-1]}")
    out = x.new_zeros((cu_seqlens.numel() - 1, x.shape[1]))
    if initial is not None:
        out += initial
    lengths = cu_seqlens.diff()
    return out.index_add(0, lengths.new_ones(len(lengths)).cumsum(0).sub(1).repeat_interleave(lengths), x)
