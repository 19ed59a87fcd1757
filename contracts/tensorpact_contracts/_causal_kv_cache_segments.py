"""Where a chunk goes in a packed causal KV cache, whose tokens lie in segments and not in slots."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch


class PackedState(Protocol):
    """What the arithmetic reads of a packed cache."""

    cache_size: int
    sink_tokens: int
    attention_window_size: int | None
    dtype: torch.dtype
    device: torch.device | str
    quant_args: Mapping[str, Any]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First position and the one behind the last of every segment, in order."""
        ...


class SegmentWrite(NamedTuple):
    """One update of a packed cache, worked out before anything moves.

    Attributes:
        tokens: Tokens of the chunk.
        chunk_start: Global position of its first token.
        chunk_end: Global position behind its last one.
        current: Span of the newest segment, or None.
        previous_global: Global end before the update.
        sink: Positions that sink segments hold after the update: whole segments that start before ``sink_tokens``.
        capacity: Tokens that the cache is made for.
        window: Attention window.
    """

    tokens: int
    chunk_start: int
    chunk_end: int
    current: tuple[int, int] | None
    previous_global: int
    sink: int
    capacity: int
    window: int

    @property
    def current_start(self) -> int | None:
        """First position of the newest segment."""
        return None if self.current is None else self.current[0]

    @property
    def rewrites(self) -> bool:
        """Whether the chunk starts where the newest segment does."""
        return self.chunk_start == self.current_start

    @property
    def same_size(self) -> bool:
        """Whether a rewrite ends where the newest segment does."""
        return not self.rewrites or (self.current is not None and self.chunk_end == self.current[1])

    @property
    def sequential(self) -> bool:
        """Whether the chunk replaces the newest segment or follows it."""
        return self.rewrites or self.chunk_start == self.previous_global

    @property
    def in_sink(self) -> bool:
        """Whether the chunk is a sink segment."""
        return self.chunk_start < self.sink

    @property
    def fits(self) -> bool:
        """Whether sink and chunk fit into the cache together."""
        return self.sink + (0 if self.in_sink else self.tokens) <= self.capacity

    @property
    def reserved(self) -> int:
        """Tokens of the window that the sink takes before the chunk gets its own."""
        return 0 if self.in_sink else self.sink

    def __repr__(self) -> str:
        return f"positions [{self.chunk_start}, {self.chunk_end}), {'a rewrite' if self.rewrites else 'appended'}"


def plan_segment(cache: PackedState, tokens: int, chunk_start: int) -> SegmentWrite:
    """Work out one update of a packed cache.

    Args:
        cache: The cache, which stays as it is.
        tokens: Tokens of the chunk.
        chunk_start: Global position of the first of them.
    """
    spans, chunk_end = cache.spans, chunk_start + tokens
    current = spans[-1] if spans else None
    window = cache.cache_size if cache.attention_window_size is None else cache.attention_window_size
    return SegmentWrite(
        tokens=tokens,
        chunk_start=chunk_start,
        chunk_end=chunk_end,
        current=current,
        previous_global=0 if current is None else current[1],
        sink=sink_end([*spans, (chunk_start, chunk_end)], cache.sink_tokens),
        capacity=cache.cache_size,
        window=window,
    )


def sink_end(spans: list[tuple[int, int]], sink_tokens: int) -> int:
    """Position behind the last sink segment."""
    return max((last for first, last in spans if first < sink_tokens), default=0)


def visible_positions(write: SegmentWrite, recent: int | None) -> list[tuple[int, int]]:
    """Ranges of positions that the chunk may attend to, in order.

    Args:
        write: The update.
        recent: Tokens in front of the chunk that stay visible beside the sink; None for the attention window.
    """
    end = max(write.previous_global, write.chunk_end)
    first = end - max(0, write.window - write.sink) if recent is None else write.chunk_start - recent
    oldest = end - (write.capacity - write.sink)
    found = [(0, write.sink), (max(write.sink, first, oldest), end)]
    return [(low, high) for low, high in found if low < high]
