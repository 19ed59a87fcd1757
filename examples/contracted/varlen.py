"""Sums over packed sequences."""

from jaxtyping import Float, Int64
from torch import Tensor

from tensorpact import contract

from .contracts import SEGMENT_SUM


@contract(SEGMENT_SUM)
def segment_sum(
    x: Float[Tensor, "T D"], cu_seqlens: Int64[Tensor, " B+1"], initial: Float[Tensor, "B D"] | None = None
) -> Float[Tensor, "B D"]:
    """Sum the rows of each sequence, which lie packed one behind the other, onto what there was before."""
    out = x.new_zeros((cu_seqlens.numel() - 1, x.shape[1]))
    if initial is not None:
        out += initial
    lengths = cu_seqlens.diff()
    return out.index_add(0, lengths.new_ones(len(lengths)).cumsum(0).sub(1).repeat_interleave(lengths), x)
