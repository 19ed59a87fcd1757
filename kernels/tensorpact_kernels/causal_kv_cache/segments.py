"""Tokens of a packed cache: a segment for each chunk, of which only the newest is kept as it came."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

#: Largest magnitude of a packed number.
LARGEST = 127.0


class Packed(NamedTuple):
    """Rows of 8-bit integers and a scale for each row.

    Attributes:
        rows: The integers, ``[B, tokens, heads, D]``.
        scales: What one step of a row is worth, ``[B, tokens, heads, 1]``.
    """

    rows: Tensor
    scales: Tensor

    def unpacked(self, first: int, last: int, dtype: torch.dtype) -> Tensor:
        """The numbers of some tokens.

        Args:
            first: First token of the segment.
            last: Token behind the last one.
            dtype: Dtype of the result.
        """
        return (self.rows[:, first:last].to(torch.float32) * self.scales[:, first:last]).to(dtype)


def pack(values: Tensor) -> Packed:
    """Round every row to 255 steps of its largest magnitude; a row of zeros stays one."""
    wide = values.to(torch.float32)
    scales = wide.abs().amax(dim=-1, keepdim=True) / LARGEST
    steps = torch.where(scales > 0, wide / scales, torch.zeros_like(wide))
    return Packed(steps.round().clamp(-LARGEST, LARGEST).to(torch.int8), scales)


@dataclass(frozen=True, slots=True)
class Segment:
    """One chunk.

    Attributes:
        start: Global position of its first token.
        end: Global position behind its last one.
        k: Keys, packed or as they came.
        v: Values, alike.
    """

    start: int
    end: int
    k: Tensor | Packed
    v: Tensor | Packed

    def packed(self) -> "Segment":
        """The same segment, packed."""
        return Segment(self.start, self.end, *(pack(t) if isinstance(t, Tensor) else t for t in (self.k, self.v)))

    def bytes(self) -> int:
        """Memory that its numbers take."""
        parts = [p for t in (self.k, self.v) for p in ((t,) if isinstance(t, Tensor) else t)]
        return sum(p.numel() * p.element_size() for p in parts)

    def part(self, values: Tensor | Packed, low: int, high: int, dtype: torch.dtype) -> Tensor:
        """The numbers between two global positions.

        Args:
            values: ``k`` or ``v``.
            low: First position.
            high: Position behind the last one.
            dtype: Dtype of the result.
        """
        first, last = max(low, self.start) - self.start, min(high, self.end) - self.start
        return values[:, first:last] if isinstance(values, Tensor) else values.unpacked(first, last, dtype)


def gather(segments: list[Segment], ranges: list[tuple[int, int]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of ranges of global positions, in order, as new tensors unless the newest segment is all of it.

    Args:
        segments: Segments in order of position.
        ranges: Ranges that the segments hold.
        dtype: Dtype of the result.
    """
    met = [(s, low, high) for low, high in ranges for s in segments if s.start < high and low < s.end]
    k = [s.part(s.k, low, high, dtype) for s, low, high in met]
    v = [s.part(s.v, low, high, dtype) for s, low, high in met]
    return (k[0], v[0]) if len(met) == 1 else (torch.cat(k, 1), torch.cat(v, 1))
