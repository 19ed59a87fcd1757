"""Torch side of the kernel that moves tokens in place: how the work is cut, strides, grid."""

# Triton has no stubs, and the launch options are no parameters of the kernel.
# pyright: reportMissingTypeStubs=false, reportCallIssue=false, reportUnknownVariableType=false

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tensorpact_kernels._launching import on_device, padded


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program is cut.

    Attributes:
        rows: Slots of one step; a power of two.
        columns: Elements of a slot; a power of two.
        num_warps: Warps of a program.
    """

    rows: int
    columns: int
    num_warps: int


#: Numbers are moved as they are, whatever they stand for, so that one kernel serves every dtype of a width.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Where programs share the slots among them, each walks few of them.
SHARED = Tile(32, 64, 4)
#: Where a shift is too short to share the slots, few programs walk all of them: a step has to be large.
ALONE = Tile(128, 32, 8)


def tile_for(shift: int, columns: int) -> Tile:
    """Choose the tile.

    Args:
        shift: Slots that every token moves.
        columns: Elements of a slot.
    """
    tile = SHARED if shift >= SHARED.rows else ALONE
    return Tile(tile.rows, min(tile.columns, padded(max(columns, 1))), tile.num_warps)


def shift_and_write_triton(
    k: Tensor,
    v: Tensor,
    *,
    first: int,
    shift: int,
    kept: int,
    key: Tensor | None = None,
    value: Tensor | None = None,
    backward: bool = False,
    tile: Tile | None = None,
) -> None:
    """Move slots in place and write a chunk behind them, keys and values in one launch.

    Args:
        k: Keys, ``[B, slots, H, D]``, any strides.
        v: Values.
        first: Slot that the first token moves to.
        shift: Slots that every token moves to the left, at least 1.
        kept: Tokens that move.
        key: Keys of a chunk for the slots behind them; None for no chunk.
        value: Values of the chunk.
        backward: Walk from ``first`` to the left and move to the right; for moves without a chunk.
        tile: Tile to use instead of the chosen one.
    """
    from .device import shift_and_write_kernel

    tokens = 0 if key is None else key.shape[1]
    total = kept + tokens
    batch, _, heads, key_dim = k.shape
    value_dim = v.shape[3]
    columns = heads * max(key_dim, value_dim)
    if not batch * total * columns:
        return
    # With nothing to move, slots are independent and every one may go to a program of its own.
    shift = shift if kept else total
    tile = tile or tile_for(shift, columns)
    stride = tile.rows if shift < tile.rows else shift
    groups = math.ceil(stride / tile.rows)
    way = -1 if backward else 1
    chunk = (k, v) if key is None or value is None else (key, value)
    with on_device(k.device):
        shift_and_write_kernel[(groups * math.ceil(columns / tile.columns), batch, 2)](
            *(t.view(BITS[t.element_size()]) for t in (k, v, *chunk)),
            # The first slot is counted along the way that is walked.
            way * first,
            shift,
            kept,
            total,
            stride,
            groups,
            heads,
            key_dim,
            value_dim,
            *_strides(k, way),
            *_strides(v, way),
            *_strides(chunk[0], 1),
            *_strides(chunk[1], 1),
            FLAT=all(_flat(t) for t in (k, v, *chunk)),
            CHUNK=key is not None,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            num_warps=tile.num_warps,
            num_stages=1,
        )


def _strides(tensor: Tensor, way: int) -> tuple[int, int, int, int]:
    batch, slot, head, dim = tensor.stride()
    return batch, way * slot, head, dim


def _flat(tensor: Tensor) -> bool:
    """Whether heads and their elements are one axis with one stride."""
    return tensor.shape[2] == 1 or tensor.stride(2) == tensor.shape[3] * tensor.stride(3)
