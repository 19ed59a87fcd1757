"""Where a chunk goes in a causal KV cache and what it may see: arithmetic on slots, nothing else.

The contract asks these questions before a call and the entry point acts on the answers, so that what was checked is
what is done.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor


class CacheState(Protocol):
    """What the arithmetic reads of a cache."""

    k: Tensor
    v: Tensor
    global_end_index: Tensor
    local_end_index: Tensor
    global_end_index_int: int | None
    local_end_index_int: int | None
    cache_size: int
    sink_tokens: int
    attention_window_size: int
    allow_growth: bool
    global_sink_tokens: int
    pinned_start: int
    pinned_len: int
    headroom: int | None

    @property
    def written_memory(self) -> tuple[Tensor, ...]:
        """Tensors that an update may write to, spare slots included."""
        ...


class Pin(NamedTuple):
    """A pinned range of slots; no tokens where nothing is pinned."""

    start: int
    tokens: int

    @property
    def end(self) -> int:
        """The slot behind the last one."""
        return self.start + self.tokens


class Write(NamedTuple):
    """One update, worked out before anything moves.

    Attributes:
        start: First slot that the chunk is written to.
        end: Slot behind the last one.
        tokens: Tokens of the chunk.
        chunk_start: Global position of its first token.
        chunk_end: Global position behind its last one.
        evicted: Slots that everything behind the sink moves to the left.
        sink: Slots at the front that do not move.
        capacity: Slots of the cache, growth included.
        window: Attention window, growth included.
        previous_global: Global end before the update.
        previous_local: Local end before the update.
        global_end: Global end after the update.
        local_end: Local end after the update.
        pin: The pinned range after the update.
        pin_moved: Whether the eviction moved the pin.
        sink_after: Effective sink after the update, which a pin may have joined.
        managed: Whether a global sink or a pin decides what is visible.
    """

    start: int
    end: int
    tokens: int
    chunk_start: int
    chunk_end: int
    evicted: int
    sink: int
    capacity: int
    window: int
    previous_global: int
    previous_local: int
    global_end: int
    local_end: int
    pin: Pin
    pin_moved: bool
    sink_after: int
    managed: bool

    def __repr__(self) -> str:
        moved = f", {self.evicted} evicted" if self.evicted else ""
        return f"slots [{self.start}, {self.end}) of {self.capacity}{moved}"

    @property
    def in_range(self) -> bool:
        """Whether the chunk lies inside the buffer, and its end is a position that the index tensors can hold."""
        return self.start >= 0 and self.end <= self.capacity and self.chunk_end < 2**63

    @property
    def kept(self) -> int:
        """Tokens behind the sink that survive an eviction in another slot, those under the chunk left out."""
        return max(0, self.capacity - self.tokens - self.sink) if self.evicted else 0

    @property
    def spares_sink(self) -> bool:
        """Whether the chunk stays off the sink, or still stands where slots and positions agree."""
        return self.global_end == self.local_end or self.start >= self.sink

    @property
    def keeps_pin(self) -> bool:
        """Whether an eviction leaves the pinned tokens whole."""
        if not self.pin.tokens or not self.evicted:
            return True
        return self.pin.start >= self.sink if self.pin_moved else self.pin.end <= self.sink

    @property
    def reserved(self) -> int:
        """Tokens of the window that sink and pin take before the most recent ones get theirs."""
        first = max(0, self.local_end - self.window)
        sink = self.sink_after if first > 0 else 0
        pinned = self.pin.tokens if self.sink_after <= self.pin.start < first else 0
        return sink + pinned if self.managed else 0


def read_item(index: Tensor) -> int:
    """The number in an index tensor; 0 where it holds none or has no memory."""
    return 0 if index.is_meta or not index.numel() else int(index.reshape(-1)[0].item())


def read_ends(cache: CacheState) -> tuple[int, int]:
    """Global and local end: the host integers where both are there, else the tensors."""
    ends = cache.global_end_index_int, cache.local_end_index_int
    if ends[0] is not None and ends[1] is not None:
        return ends[0], ends[1]
    return read_item(cache.global_end_index), read_item(cache.local_end_index)


def pin_of(cache: CacheState) -> Pin:
    """The pinned range of a cache."""
    pinned = cache.pinned_start >= 0 and cache.pinned_len > 0
    return Pin(cache.pinned_start, cache.pinned_len) if pinned else Pin(-1, 0)


def effective_sink(cache: CacheState, pin: Pin) -> int:
    """Slots at the front that eviction leaves alone; a pin that has arrived behind the global sink is one of them."""
    if not pin.tokens:
        return max(cache.global_sink_tokens, cache.sink_tokens)
    if pin.start == cache.global_sink_tokens:
        return cache.global_sink_tokens + pin.tokens
    return cache.global_sink_tokens


def plan_write(cache: CacheState, tokens: int, chunk_start: int) -> Write:
    """Work out one update of a cache.

    Args:
        cache: The cache, which stays as it is.
        tokens: Tokens of the chunk.
        chunk_start: Global position of the first of them.
    """
    before, filled = read_ends(cache)
    capacity, window = cache.cache_size, cache.attention_window_size
    pin = pin_of(cache)
    sink = effective_sink(cache, pin)
    chunk_end, evicted, after, pin_moved = chunk_start + tokens, 0, filled, False
    if chunk_end <= before:
        start = chunk_start - (before - filled)
        end = start + tokens
    else:
        needed = filled + chunk_end - before
        if cache.allow_growth and needed > capacity:
            grown = max(needed, 2 * capacity)
            window = grown if window == capacity else window
            capacity = grown
        evicted = max(0, needed - capacity)
        end = after = needed - evicted
        start = end - tokens
        pin_moved = evicted > 0 and pin.tokens > 0 and pin.start >= sink
        if pin_moved:
            pin = Pin(pin.start - evicted, pin.tokens)
    return Write(
        start=start,
        end=end,
        tokens=tokens,
        chunk_start=chunk_start,
        chunk_end=chunk_end,
        evicted=evicted,
        sink=sink,
        capacity=capacity,
        window=window,
        previous_global=before,
        previous_local=filled,
        global_end=max(before, chunk_end),
        local_end=after,
        pin=pin,
        pin_moved=pin_moved,
        sink_after=effective_sink(cache, pin),
        managed=cache.global_sink_tokens > 0 or pin.tokens > 0,
    )


def visible_ranges(write: Write, recent: int | None) -> list[tuple[int, int]]:
    """Ranges of slots that the chunk may attend to, in order.

    Args:
        write: The update.
        recent: Tokens in front of the chunk that stay visible beside sink and pin; None for the attention window.
    """
    found = _with_recent(write, recent) if recent is not None else _within_window(write)
    return [(first, last) for first, last in found if first < last]


def _with_recent(write: Write, recent: int) -> Iterator[tuple[int, int]]:
    sink_end = min(write.sink_after, write.local_end)
    first = max(sink_end, write.start - recent)
    if first <= sink_end:
        yield 0, write.local_end
        return
    yield 0, sink_end
    if write.pin.tokens and sink_end <= write.pin.start < first:
        # A pin that reaches into the recent tokens must not be attended to twice.
        yield write.pin.start, min(write.pin.end, first)
    yield first, write.local_end


def _within_window(write: Write) -> Iterator[tuple[int, int]]:
    first, sink, pin = max(0, write.local_end - write.window), write.sink_after, write.pin
    uses_sink = write.managed and sink > 0 and first > 0
    uses_pin = write.managed and pin.tokens > 0 and sink <= pin.start < first
    if not (uses_sink or uses_pin):
        yield first, write.local_end
        return
    if uses_sink:
        yield 0, sink
    if uses_pin:
        yield pin.start, pin.end
    recent = write.local_end - max(0, write.window - write.reserved)
    yield max(sink if uses_sink else 0, recent), write.local_end
