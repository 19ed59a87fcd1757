"""What an update of a cache hands back."""

from typing import NamedTuple

import torch
from torch import Tensor


class CausalAttentionKVView(NamedTuple):
    """Keys and values that a chunk attends to, and where the chunk went.

    Attributes:
        k: Visible keys, ``[B, visible tokens, heads of the call, D]``.
        v: Visible values.
        local_start_index: First slot that the chunk was written to.
        local_end_index: Slot behind the last one.
        visible_local_end: Local end of the cache after the update.
        visible_global_end: Global end of the cache after the update.
    """

    k: Tensor
    v: Tensor
    local_start_index: int
    local_end_index: int
    visible_local_end: int
    visible_global_end: int


def select(buffer: Tensor, ranges: list[tuple[int, int]]) -> Tensor:
    """The slots of some ranges, in order: a view of the buffer for one range, a new tensor for several."""
    parts = [buffer[:, first:last] for first, last in ranges]
    if not parts:
        return buffer[:, :0]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
