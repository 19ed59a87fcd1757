"""The causal KV cache against a cache that is a list of tokens, in any order of calls, right ones and wrong ones.

The list cache follows the published description step by step and knows nothing of the arithmetic under test. After
every call, and above all after every refused one, the whole state is compared.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorpact import ContractViolation
from tensorpact_contracts import causal_kv_cache as documented
from tensorpact_kernels import CausalSelfAttentionKVCache

HEADS = 3


class Refused(Exception):
    """The list cache refuses a call."""

    def __init__(self, *errors: Any) -> None:
        super().__init__([e.slug for e in errors])
        self.errors = errors


@dataclass
class ListCache:
    """Slots as a Python list; a token is its value, an unwritten slot is 0."""

    slots: list[float]
    sink: int
    window: int
    growth: bool
    global_sink: int
    seen: int = 0
    used: int = 0
    pin: tuple[int, int] | None = None
    heads: tuple[int, int] | None = None
    moved: int = field(default=0, repr=False)

    def effective_sink(self) -> int:
        if self.pin is None:
            return max(self.sink, self.global_sink)
        start, length = self.pin
        return self.global_sink + (length if start == self.global_sink else 0)

    def pin_chunk(self, tokens: int) -> None:
        if self.sink <= 0 or tokens <= 0:
            self.pin = None
        elif tokens > self.used:
            raise Refused(documented.PIN_LENGTH)
        else:
            self.pin = (self.used - tokens, min(self.sink, tokens))

    def reset(self) -> None:
        self.seen, self.used, self.pin, self.heads = 0, 0, None, None

    def update(
        self, tokens: list[float], start: int, recent: int | None, heads: tuple[int, int]
    ) -> tuple[list[float], tuple[int, int]]:
        """Return the visible tokens and where the chunk went; raise Refused with this cache unchanged."""
        end, count = start + len(tokens), len(tokens)
        slots, used, seen, pin, window = list(self.slots), self.used, self.seen, self.pin, self.window
        sink, dropped = self.effective_sink(), 0
        if end > self.seen:
            new = end - self.seen
            if self.growth and used + new > len(slots):
                grown = max(used + new, 2 * len(slots))
                window = grown if window == len(slots) else window
                slots += [0.0] * (grown - len(slots))
            while used + new > len(slots):
                # One token at a time: the oldest one behind the sink goes.
                if sink < len(slots):
                    del slots[sink]
                    slots.append(0.0)
                used -= 1
                dropped += 1
            used += new
            seen = end
            at = used - count
        else:
            at = start - (self.seen - self.used)
        if at < 0 or at + count > len(slots):
            raise Refused(documented.WRITE_RANGE)
        if recent is not None and recent < 0:
            raise Refused(documented.RECENT_WINDOW)
        self._refuse_holes(start, count, at, dropped, sink, seen, used)
        if pin is not None and dropped:
            inside = pin[0] < sink
            if inside and pin[0] + pin[1] > sink:
                raise Refused(documented.PIN_LOST)
            if not inside:
                pin = (pin[0] - dropped, pin[1])
                if pin[0] < sink:
                    raise Refused(documented.PIN_LOST)
        slots[at : at + count] = tokens
        after = ListCache(slots, self.sink, window, self.growth, self.global_sink, seen, used, pin, self.heads)
        indices = after.visible(at, count, recent)
        if self.heads not in (None, heads):
            raise Refused(documented.HEAD_SLICE)
        after.heads = heads
        vars(self).update(vars(after))
        return [slots[i] for i in indices], (at, at + count)

    def _refuse_holes(self, start: int, count: int, at: int, dropped: int, sink: int, seen: int, used: int) -> None:
        if count < 1:
            raise Refused(documented.EMPTY_CHUNK)
        if start > self.seen:
            raise Refused(documented.GAP)
        if dropped and count > len(self.slots) - sink:
            raise Refused(documented.SINK_OVERRUN)
        if seen > used and at < sink:
            raise Refused(documented.SINK_REWRITE)

    def visible(self, at: int, count: int, recent: int | None) -> list[int]:
        """Slots that are attended to; refuses a window that hides part of the chunk."""
        sink, everything = self.effective_sink(), list(range(self.used))
        if recent is not None:
            edge = max(min(sink, self.used), at - recent)
            pinned = range(*self._pinned()) if self.pin and sink <= self.pin[0] < edge else range(0)
            return [i for i in everything if i < sink or i >= edge or i in pinned]
        first = max(0, self.used - self.window)
        if self.window < count:
            raise Refused(documented.WINDOW)
        budget, shown = self.window, set[int]()
        if self.global_sink or self.pin:
            if sink and first > 0:
                shown |= set(range(sink))
                budget -= sink
            if self.pin and sink <= self.pin[0] < first:
                shown |= set(range(*self._pinned()))
                budget -= self.pin[1]
        if budget < self.window and budget < count:
            raise Refused(documented.CROWDED)
        return sorted(shown | {i for i in everything if i >= self.used - budget})

    def _pinned(self) -> tuple[int, int]:
        return (0, 0) if self.pin is None else (self.pin[0], sum(self.pin))


class CacheMachine(RuleBasedStateMachine):
    """Calls in any order; ``made`` counts tokens up so that every token has a value of its own."""

    @initialize(
        slots=st.integers(1, 12),
        sink=st.integers(0, 4),
        global_sink=st.sampled_from([0, 0, 1, 2]),
        window=st.sampled_from([0, 0, 3, 5, 8, 14]),
        growth=st.sampled_from([False, False, False, False, True]),
        headroom=st.sampled_from([None, 0, 1, 2, 5, 30]),
        width=st.sampled_from([1, 2, HEADS, HEADS]),
        host=st.booleans(),
    )
    def make(
        self,
        slots: int,
        sink: int,
        global_sink: int,
        window: int,
        growth: bool,
        headroom: int | None,
        width: int,
        host: bool,
    ) -> None:
        sink, global_sink = min(sink, slots), min(global_sink, slots)
        self.model = ListCache([0.0] * slots, sink, window or slots, growth, global_sink)
        self.width, self.first = width, 0 if width == HEADS else HEADS - width
        buffers = [torch.full((2, slots, HEADS, d), 99.0) for d in (2, 3)]
        for buffer in buffers:
            buffer[:, :, self.first : self.first + width] = 0
        self.cache = CausalSelfAttentionKVCache(
            *buffers,
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
            *((0, 0) if host else (None, None)),
            sink_tokens=sink,
            attention_window_size=window,
            allow_growth=growth,
            global_sink_tokens=global_sink,
            headroom=headroom,
        )
        self.made = 0.0
        self.kept: list[tuple[Any, Any]] = []

    def tokens(self, count: int) -> list[float]:
        fresh = [self.made + i + 1 for i in range(count)]
        self.made += count
        return fresh

    def chunk(self, tokens: list[float], width: int, last: int, sign: float) -> torch.Tensor:
        """Rows in which batch, head and column can be told apart."""
        values = torch.tensor(tokens, dtype=torch.float32).view(1, -1, 1, 1)
        marks = torch.arange(2).view(2, 1, 1, 1) / 4 + torch.arange(width).view(1, 1, -1, 1) / 8
        return sign * (values + marks + torch.arange(last) / 64)

    def call(self, tokens: list[float], start: int, recent: int | None = None, **other: Any) -> Any:
        first = other.pop("first", None if self.width == HEADS else self.first)
        width = other.pop("width", self.width)
        return self.cache.update_and_get_attention_kv(
            key=self.chunk(tokens, width, 2, 1.0),
            value=self.chunk(tokens, width, 3, -1.0),
            current_chunk_start=start,
            cache_head_start=first,
            recent_window_tokens=recent,
            **other,
        )

    def frozen(self) -> tuple[Any, ...]:
        c = self.cache
        return (
            *(t.clone() for t in (c.k, c.v, c.global_end_index, c.local_end_index)),
            c.k.data_ptr(),
            c.v.data_ptr(),
            *(c.global_end_index_int, c.local_end_index_int, c.cache_size, c.attention_window_size),
            *(c.pinned_start, c.pinned_len, c.head_slice),
        )

    def unchanged(self, before: tuple[Any, ...]) -> None:
        for one, other in zip(before, self.frozen(), strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other

    def refused(self, errors: tuple[Any, ...], call: Any) -> None:
        before = self.frozen()
        with pytest.raises(ContractViolation) as caught:
            call()
        assert caught.value.error in errors, caught.value
        self.unchanged(before)

    def both(self, count: int, start: int, recent: int | None) -> None:
        tokens, heads = self.tokens(count), (self.first, self.first + self.width)
        try:
            visible, place = self.model.update(tokens, start, recent, heads)
        except Refused as no:
            self.refused(no.errors, lambda: self.call(tokens, start, recent))
            return
        view = self.call(tokens, start, recent)
        assert (view.local_start_index, view.local_end_index) == place
        assert (view.visible_local_end, view.visible_global_end) == (self.model.used, self.model.seen)
        wanted = self.marked(visible, self.width)
        assert torch.equal(view.k, wanted[0])
        assert torch.equal(view.v, wanted[1])

    def marked(self, tokens: list[float], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.chunk(tokens, width, 2, 1.0), self.chunk(tokens, width, 3, -1.0)
        blank = [i for i, t in enumerate(tokens) if t == 0]
        for tensor in out:
            tensor[:, blank] = 0
        return out

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), recent=st.sampled_from([None, None, 0, 1, 3]))
    def append(self, counts: list[int], recent: int | None) -> None:
        for count in counts:
            self.both(count, self.model.seen, recent)

    @rule(count=st.integers(1, 3), recent=st.sampled_from([None, None, 0, 2]))
    def append_and_pin_then_append(self, count: int, recent: int | None) -> None:
        """Chunks of one size, which a pin survives until it arrives at the sink."""
        self.both(count, self.model.seen, recent)
        self.pin(min(count, self.model.used))
        for _ in range(4):
            self.both(count, self.model.seen, recent)

    @rule(recent=st.sampled_from([None, 1]))
    def fill_exactly(self, recent: int | None) -> None:
        free = len(self.model.slots) - self.model.used
        self.both(max(1, min(free, 4)), self.model.seen, recent)

    @rule(count=st.integers(1, 5), back=st.integers(1, 8), recent=st.sampled_from([None, None, 0, 2]))
    def rewrite_or_overlap(self, count: int, back: int, recent: int | None) -> None:
        self.both(count, max(0, self.model.seen - back), recent)

    @rule(count=st.integers(0, 14), ahead=st.integers(-14, 3), recent=st.sampled_from([None, None, -1, 0, 4]))
    def anything(self, count: int, ahead: int, recent: int | None) -> None:
        self.both(count, self.model.seen + ahead, recent)

    @rule(where=st.integers(0, 3), count=st.integers(1, 2))
    def rewrite_the_oldest(self, where: int, count: int) -> None:
        self.both(count, self.model.seen - self.model.used + where, 0)

    @rule(tokens=st.integers(-1, 8))
    def pin(self, tokens: int) -> None:
        try:
            self.model.pin_chunk(tokens)
        except Refused as no:
            self.refused(no.errors, lambda: self.cache.pin_current_chunk(tokens))
            return
        self.cache.pin_current_chunk(tokens)

    @rule()
    def unpin(self) -> None:
        self.model.pin = None
        self.cache.reset_pinned_sink()

    @precondition(lambda self: self.model.seen > 25)
    @rule()
    def reset(self) -> None:
        self.model.reset()
        self.cache.reset_indices()

    @rule(window=st.integers(1, 14))
    def set_window(self, window: int) -> None:
        self.model.window = self.cache.attention_window_size = window

    @rule()
    def wrong_chunk(self) -> None:
        """A chunk that no state of the cache can take."""
        start = self.model.seen
        chunk = self.chunk([1.0], self.width, 2, 1.0)
        wide = self.chunk([1.0], HEADS + 1, 2, 1.0)
        first = None if self.width == HEADS else self.first

        def call(key: Any, value: Any, first: Any = first) -> Any:
            self.cache.update_and_get_attention_kv(
                key=key, value=value, current_chunk_start=start, cache_head_start=first
            )

        sliced = self.width != HEADS
        for errors, arguments in (
            ((documented.CHUNK_DTYPE,), (chunk.double(), self.chunk([1.0], self.width, 3, -1.0))),
            ((documented.VALUE_SHAPE,), (chunk, chunk)),
            ((documented.CHUNK_RANK,), (chunk, chunk[0])),
            ((documented.MORE_HEADS,), (wide, wide, 0)),
            (
                (documented.HEAD_RANGE if sliced else documented.UNUSED_START,),
                (chunk, chunk, -1),
            ),
        ):
            self.refused(errors, lambda arguments=arguments: call(*arguments))

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "model"):
            return
        c, m = self.cache, self.model
        assert (int(c.global_end_index), int(c.local_end_index)) == (m.seen, m.used)
        assert c.cache_size == len(m.slots) == c.k.shape[1] == c.v.shape[1]
        assert c.attention_window_size == m.window
        assert (c.pinned_start, c.pinned_len) == (m.pin or (-1, 0))
        rows = slice(self.first, self.first + self.width)
        wanted = self.marked(m.slots[: m.used], self.width)
        assert torch.equal(c.k[:, : m.used, rows], wanted[0])
        assert torch.equal(c.v[:, : m.used, rows], wanted[1])
        # What belongs to other heads stays what it was; a grown buffer has zeros behind.
        for buffer in (c.k, c.v):
            others = torch.cat([buffer[:, :, : self.first], buffer[:, :, self.first + self.width :]], 2)
            assert bool(((others == 99) | (others == 0)).all())
            if not m.growth:
                assert bool((others == 99).all())


CacheMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCacheMachine = CacheMachine.TestCase
