"""Choices of a call that need no tensor's contents: what the mask can hide, tiles, and shares of the keys."""

import functools
import math
from dataclasses import dataclass

from tensorpact_kernels._launching import padded

MAX_SPLITS = 256
AUTOMATIC_SPLITS = 128

# Costs in loop steps: a program's start until its first keys arrive, its partial result, and the merge.
_START_STEPS = 3
_PARTIAL_STEPS = 1
_MERGE_STEPS = 2
_MERGE_ELEMENTS = 8192
_REMEMBERED = 1024
_DECODE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Mask:
    """What a query may see, without what can hide nothing.

    Attributes:
        left: Keys before the query's own; -1 for all.
        right: Keys behind the query's own; -1 for all.
        chunk: Length of the chunks that attention stays in; 0 for no chunks.
    """

    left: int
    right: int
    chunk: int

    @property
    def hides(self) -> bool:
        """Whether any key can be hidden; rotary positions of queries count up only then."""
        return self.left >= 0 or self.right >= 0 or self.chunk > 0


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How one program is cut.

    Attributes:
        block_m: Rows of a tile, tokens times the heads of one key head; a power of two, at least 16.
        block_n: Slots of one loop step; a power of two, at least 16.
        num_warps: Warps of a program.
        num_stages: Key tiles in flight.
        resident: Programs that a multiprocessor runs at a time, for the number of shares.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    resident: int = 1


def mask_of(
    window_size: tuple[int, int], attention_chunk: int, capacity: int, longest: int, *, causal: bool, said: int = 0
) -> Mask:
    """Leave out the sides of the window that hide nothing.

    Numbers may be NumPy's, which Triton does not take.

    Args:
        window_size: Keys seen before and behind a query's own; negative for all.
        attention_chunk: Length of the chunks that attention stays in; 0 for no chunks.
        capacity: Most keys that a sequence may have.
        longest: Most queries that a sequence may have.
        causal: Whether no key behind the query's own is seen, whatever the window says of it.
        said: Queries that the caller says a sequence may have, where that is more and rotary positions go by it.
    """
    left, right = (int(side) for side in window_size)
    if causal:
        right = 0
    left = -1 if left >= capacity - 1 else max(left, -1)
    # What hides nothing is as good as any longer one, and stays in 32 bits.
    right = -1 if right >= max(longest, said) - 1 else max(min(right, longest), -1)
    return Mask(left, right, min(int(attention_chunk), max(capacity, longest, 1)))


def tile_config(rows: int, head_dim: int, value_dim: int, *, value_queries: bool) -> TileConfig:
    """Choose the tile of the portable kernel.

    Args:
        rows: Query rows of one key head, tokens times its heads.
        head_dim: Columns of queries and keys; 0 where keys are not read.
        value_dim: Columns of values.
        value_queries: Whether queries meet values too, which holds a second tile of them.
    """
    columns = max(padded(head_dim) if head_dim else 16, padded(value_dim))
    if rows <= _DECODE_ROWS:
        block_m = padded(rows)
        if columns > 256:
            return TileConfig(block_m, 32, 4, 3, 2) if block_m <= 32 else TileConfig(block_m, 64, 8, 2, 1)
        if columns > 128:
            return TileConfig(block_m, 32, 4, 3, 2)
        return TileConfig(block_m, 32, 4, 4, 4)
    if columns > 256:
        return TileConfig(64, 64, 8, 2, 1)
    if columns > 128 or value_queries:
        return TileConfig(64, 64, 4, 2, 1)
    return TileConfig(128, 64, 8, 3, 1)


@functools.lru_cache(maxsize=_REMEMBERED)
def choose_splits(blocks: int, steps: int, places: int) -> int:
    """Choose how many programs share the keys of one tile of query rows.

    Args:
        blocks: Programs of an unsplit launch.
        steps: Loop steps of such a program, at most.
        places: Programs that the device runs at a time.
    """

    def cost(splits: int) -> float:
        rounds = math.ceil(blocks * splits / places)
        own = math.ceil(steps / splits) + _START_STEPS
        return rounds * own if splits == 1 else rounds * (own + _PARTIAL_STEPS) + _MERGE_STEPS

    return min(range(1, max(1, min(steps, AUTOMATIC_SPLITS)) + 1), key=cost)


def merge_columns(splits: int, value_dim: int) -> int:
    """Return the columns of one merge program: as many as fit its registers beside all of the shares."""
    return min(padded(value_dim), max(16, _MERGE_ELEMENTS // padded(splits)))
