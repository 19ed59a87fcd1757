"""The causal self-attention KV cache: a sliding buffer of tokens with a sink, a pin and a window over it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tensorpact import contract
from tensorpact_contracts._causal_kv_cache_plan import Write, plan_write, read_ends, visible_ranges
from tensorpact_contracts.causal_kv_cache import PIN, STATE, UPDATE

from . import rolling
from .view import CausalAttentionKVView, select


@contract(STATE)
@dataclass(slots=True, eq=False)
class CausalSelfAttentionKVCache:
    """Keys and values of the tokens so far, in slots: sink tokens in front, then the most recent ones.

    Fields may be set between calls; every call looks at them again. A call that is refused changes nothing.

    Attributes:
        k: Keys. What an update writes is ``k`` itself, until spare slots take over (see ``headroom``).
        v: Values.
        global_end_index: Positions seen so far; one element.
        local_end_index: Slots in use; one element.
        global_end_index_int: The same on the host, which wins once both are there.
        local_end_index_int: The same on the host.
        cache_size: Slots; 0 takes those of ``k``.
        sink_tokens: Tokens at the front that are never evicted. They are attended to only while the window reaches
            them: ask for that with ``global_sink_tokens``.
        attention_window_size: Tokens that are visible; 0 takes ``cache_size``.
        allow_growth: Enlarge the buffers instead of evicting.
        global_sink_tokens: Sink that stays, and stays visible, whatever is pinned.
        pinned_start: Slot of the pinned tokens, -1 for none.
        pinned_len: How many tokens are pinned.
        headroom: Spare slots, with which an eviction moves a window and not the tokens. They are allocated at the
            first eviction of a call with all heads; from then on ``k`` and ``v`` are windows over that storage, and a
            new window after every eviction. 0 keeps the buffers for good, which a captured CUDA graph needs. None
            takes as many as there are slots, twice as many under a sink, or none where memory is short.
    """

    k: Float[Tensor, "B S Hc D"]
    v: Float[Tensor, "B S Hc Dv"]
    global_end_index: Int64[Tensor, "..."]
    local_end_index: Int64[Tensor, "..."]
    global_end_index_int: int | None = None
    local_end_index_int: int | None = None
    cache_size: int = 0
    sink_tokens: int = 0
    attention_window_size: int = 0
    allow_growth: bool = False
    global_sink_tokens: int = 0
    pinned_start: int = -1
    pinned_len: int = 0
    headroom: int | None = field(default=None, kw_only=True)
    _storage: Any = field(default=None, init=False, repr=False)
    _heads: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Fill in the sizes that were left at 0."""
        self.cache_size = self.cache_size or (self.k.shape[1] if self.k.ndim > 1 else 0)
        self.attention_window_size = self.attention_window_size or self.cache_size

    @property
    def num_cache_heads(self) -> int:
        """Heads of the buffers."""
        return self.k.shape[2] if self.k.ndim > 2 else 0

    @property
    def chunk_axes(self) -> tuple[int, int, int]:
        """Batch, head dim of keys and head dim of values that a chunk must have."""
        return self.k.shape[0], self.k.shape[3], self.v.shape[3]

    @property
    def chunk_storage(self) -> tuple[torch.dtype, torch.device]:
        """Dtype and device that a chunk must have."""
        return self.k.dtype, self.k.device

    @property
    def head_slice(self) -> tuple[int, int] | None:
        """First head and the one behind the last that the cache holds since its last reset; None before a chunk."""
        return self._heads

    @property
    def written_memory(self) -> tuple[Tensor, ...]:
        """Tensors that an update may write to: the buffers and, where these are windows, what lies around them."""
        storage = self._current_storage()
        return (self.k, self.v) if storage is None else (storage.k_store, storage.v_store)

    def reset_indices(self) -> None:
        """Forget all tokens, the pin and the slice of heads; the buffers keep what is in them."""
        self.global_end_index.zero_()
        self.local_end_index.zero_()
        if self.global_end_index_int is not None:
            self.global_end_index_int = 0
        if self.local_end_index_int is not None:
            self.local_end_index_int = 0
        self._heads = None
        self.reset_pinned_sink()

    def reset_pinned_sink(self) -> None:
        """Unpin what is pinned."""
        self.pinned_start, self.pinned_len = -1, 0

    @contract(PIN)
    def pin_current_chunk(self, m: int) -> None:
        """Pin the first tokens of the newest chunk, as many as ``sink_tokens`` allows.

        Without sink tokens, or with none to pin, whatever is pinned is let go.

        Args:
            m: Tokens of the newest chunk.

        Raises:
            ValueError: The cache holds fewer tokens than that.
        """
        if self.sink_tokens <= 0 or m <= 0:
            self.reset_pinned_sink()
            return
        self.pinned_start, self.pinned_len = read_ends(self)[1] - m, min(self.sink_tokens, m)

    def can_direct_current_attention(self, n: int) -> bool:
        """Whether a chunk of this many tokens may skip the cache, which would hold and show the chunk alone.

        Args:
            n: Tokens of the chunk.
        """
        return self.sink_tokens == 0 and self.cache_size == n == self.attention_window_size

    def read_indices(self) -> tuple[int, int]:
        """Global and local end; read from the tensors once, which synchronises, and from the host afterwards."""
        self.global_end_index_int, self.local_end_index_int = ends = read_ends(self)
        return ends

    def write_indices(self, *, global_end_index: int, local_end_index: int) -> None:
        """Set both ends, on the host where they are known there, and in the tensors.

        Args:
            global_end_index: Positions seen.
            local_end_index: Slots in use.
        """
        if (self.global_end_index_int, self.local_end_index_int) == (global_end_index, local_end_index):
            return
        if self.global_end_index_int is not None:
            self.global_end_index_int = global_end_index
        if self.local_end_index_int is not None:
            self.local_end_index_int = local_end_index
        self.global_end_index.fill_(global_end_index)
        self.local_end_index.fill_(local_end_index)

    @contract(UPDATE)
    def update_and_get_attention_kv(
        self,
        *,
        key: Float[Tensor, "B n Hin D"],
        value: Float[Tensor, "B n Hin Dv"],
        current_chunk_start: int,
        cache_head_start: int | None = None,
        recent_window_tokens: int | None = None,
        debug_name: str = "causal KV cache",
    ) -> CausalAttentionKVView:
        """Write a chunk, evict what no longer fits, and return what the chunk may attend to.

        A chunk that ends beyond the global end is appended, one that does not replaces tokens that are still there.
        No gradient flows through the cache.

        Args:
            key: Keys of the chunk, any strides.
            value: Values of the chunk, any strides.
            current_chunk_start: Global position of its first token.
            cache_head_start: First head of the slice that the chunk brings, where it does not bring all heads.
            recent_window_tokens: Tokens in front of the chunk that stay visible, beside the sink and the pin, in place
                of the attention window; tokens behind a rewritten chunk stay visible too.
            debug_name: What messages call this cache.

        Returns:
            Visible keys and values in the dtype of the cache, with the heads of the chunk. A single range of slots is
            a view of the buffer, which later updates write to; several ranges are a copy.

        Raises:
            ValueError: The chunk does not fit the cache, or the state of the cache makes no sense.
            RuntimeError: The chunk starts before the oldest slot or is larger than the cache.
        """
        write = plan_write(self, key.shape[1], int(current_chunk_start))
        first = int(cache_head_start or 0)
        heads = (first, first + key.shape[2])
        with torch.no_grad():
            self._store(write, key.detach(), value.detach(), heads)
        self._heads = heads
        if write.pin_moved:
            self.pinned_start = write.pin.start
        self.read_indices()
        self.write_indices(global_end_index=write.global_end, local_end_index=write.local_end)
        recent = None if recent_window_tokens is None else int(recent_window_tokens)
        ranges = visible_ranges(write, recent)
        k, v = (_slice(t.detach(), heads) for t in (self.k, self.v))
        return CausalAttentionKVView(
            select(k, ranges), select(v, ranges), write.start, write.end, write.local_end, write.global_end
        )

    def _store(self, write: Write, key: Tensor, value: Tensor, heads: tuple[int, int]) -> None:
        if write.capacity > self.cache_size:
            k, v = rolling.grown(self.k, write.capacity), rolling.grown(self.v, write.capacity)
            self.k, self.v, self._storage = k, v, None
            self.cache_size, self.attention_window_size = write.capacity, write.window
        every = heads == (0, self.num_cache_heads)
        # A slice moves its own heads only, so that the window stays; so it does where the sink is most of what moves.
        if write.evicted and every and write.kept > write.sink and self._advance(write, key, value):
            return
        k, v = _slice(self.k, heads), _slice(self.v, heads)
        if write.evicted:
            rolling.roll_in_place(k, v, write, key, value)
        else:
            rolling.write_chunk(k, v, key, value, write.start)

    def _current_storage(self) -> rolling.Storage | None:
        """The storage that ``k`` and ``v`` are windows over; None where somebody has given the cache other buffers."""
        storage = self._storage
        return storage if storage is not None and storage.k is self.k and storage.v is self.v else None

    def _advance(self, write: Write, key: Tensor, value: Tensor) -> bool:
        """Evict by moving the window; false where there are no spare slots to move it over."""
        storage = self._current_storage()
        if storage is None:
            spare = rolling.spare_slots(self.k, write.sink) if self.headroom is None else self.headroom
            if not spare:
                return False
            try:
                storage = rolling.allocate(self.k, self.v, spare)
            except RuntimeError:
                # Short memory: torch.OutOfMemoryError on a GPU, a plain RuntimeError of the allocator on a CPU.
                if self.headroom is not None:
                    raise
                return False
            rolling.settle(storage, self.k, self.v, write, key, value)
            self._storage = storage
        else:
            rolling.advance(storage, write, key, value)
        self.k, self.v = storage.k, storage.v
        return True


CausalAttentionKVCache = CausalSelfAttentionKVCache
"""The name that the public record has for the cache."""


def _slice(buffer: Tensor, heads: tuple[int, int]) -> Tensor:
    return buffer if heads == (0, buffer.shape[2]) else buffer[:, :, heads[0] : heads[1]]
