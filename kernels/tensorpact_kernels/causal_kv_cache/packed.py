"""The packed causal KV cache: the same updates with old chunks rounded to 8 bits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tensorpact import contract
from tensorpact_contracts._causal_kv_cache_segments import plan_segment, sink_end, visible_positions
from tensorpact_contracts.causal_kv_cache_packed import PACKED_PIN_CHUNK, PACKED_STATE, PACKED_UPDATE

from .segments import Segment, gather
from .view import CausalAttentionKVView


@contract(PACKED_STATE)
@dataclass(slots=True, eq=False, kw_only=True)
class QVGPackedCausalKVCache:
    """Keys and values of the tokens so far in segments, one a chunk; all but the newest are rounded to 8 bits.

    The newest chunk stays as it came, so that the steps of its denoising lose nothing; it is packed when the next one
    follows. A segment that starts before ``sink_tokens`` is a sink, whole, and always visible.

    Attributes:
        batch_size: Batch of every chunk.
        cache_size: Tokens that the cache holds.
        num_heads: Heads of the cache.
        head_dim: Head dim of keys and values.
        dtype: Dtype of chunks and of what is handed back.
        device: Device of both.
        global_end_index: Positions seen so far; one element, written.
        local_end_index: Tokens held; one element, written.
        use_int_indices: Whether both are told on the host too.
        sink_tokens: Segments that start before this position are never dropped.
        attention_window_size: Tokens that are visible; None takes ``cache_size``.
        quant_args: ``{"bits": 8}`` packs, ``{"bits": 16}`` keeps every chunk as it came.
    """

    batch_size: int
    cache_size: int
    num_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device | str
    global_end_index: Int64[Tensor, "..."]
    local_end_index: Int64[Tensor, "..."]
    use_int_indices: bool = False
    sink_tokens: int = 0
    attention_window_size: int | None = None
    quant_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _segments: Any = field(default_factory=list[Segment], init=False, repr=False)
    _heads: Any = field(default=None, init=False, repr=False)

    @property
    def num_cache_heads(self) -> int:
        """Heads of the cache."""
        return self.num_heads

    @property
    def chunk_axes(self) -> tuple[int, int, int]:
        """Batch, head dim of keys and head dim of values that a chunk must have."""
        return self.batch_size, self.head_dim, self.head_dim

    @property
    def chunk_storage(self) -> tuple[torch.dtype, torch.device]:
        """Dtype and device that a chunk must have."""
        device = torch.device(self.device)
        if str(device) == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        return self.dtype, device

    @property
    def head_slice(self) -> tuple[int, int] | None:
        """First head and the one behind the last that the cache holds since its last reset; None before a chunk."""
        return self._heads

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First position and the one behind the last of every segment, in order."""
        return [(s.start, s.end) for s in self._segments]

    @property
    def global_end_index_int(self) -> int | None:
        """Positions seen, where the host is told."""
        return (self._segments[-1].end if self._segments else 0) if self.use_int_indices else None

    @property
    def local_end_index_int(self) -> int | None:
        """Tokens held, where the host is told."""
        seen = self.global_end_index_int
        return None if seen is None else min(seen, self.cache_size)

    @property
    def stored_bytes(self) -> int:
        """Memory that keys and values take."""
        return sum(segment.bytes() for segment in self._segments)

    def reset_indices(self) -> None:
        """Forget all tokens and the slice of heads."""
        self._segments, self._heads = [], None
        self.global_end_index.zero_()
        self.local_end_index.zero_()

    def reset_pinned_sink(self) -> None:
        """Nothing is ever pinned here."""

    @contract(PACKED_PIN_CHUNK)
    def pin_current_chunk(self, m: int) -> None:
        """Refuse to pin: a packed cache has no slots that a pin could name.

        Args:
            m: Tokens to pin; with none there is nothing to refuse.

        Raises:
            NotImplementedError: There is something to pin.
        """

    def can_direct_current_attention(self, n: int) -> bool:
        """Whether a chunk of this many tokens may skip the cache, which would hold and show the chunk alone.

        Args:
            n: Tokens of the chunk.
        """
        window = self.cache_size if self.attention_window_size is None else self.attention_window_size
        return self.sink_tokens == 0 and self.cache_size == n == window

    @contract(PACKED_UPDATE)
    def update_and_get_attention_kv(
        self,
        *,
        key: Float[Tensor, "B n Hin D"],
        value: Float[Tensor, "B n Hin D"],
        current_chunk_start: int,
        cache_head_start: int | None = None,
        recent_window_tokens: int | None = None,
        debug_name: str = "QVG packed KV cache",
    ) -> CausalAttentionKVView:
        """Append a chunk, or replace the newest one, and return what the chunk may attend to.

        Args:
            key: Keys of the chunk, any strides.
            value: Values of the chunk, any strides.
            current_chunk_start: Global position of its first token.
            cache_head_start: First head of the slice that the chunk brings, where it does not bring all heads.
            recent_window_tokens: Tokens in front of the chunk that stay visible beside the sink, in place of the
                attention window.
            debug_name: What messages call this cache.

        Returns:
            Visible keys and values with the heads of the chunk. Slots mean nothing here: the local start is 0 and the
            local end the length of the chunk.

        Raises:
            NotImplementedError: The chunk neither follows the newest one nor replaces it whole.
            ValueError: The chunk does not fit the cache.
        """
        write = plan_segment(self, key.shape[1], int(current_chunk_start))
        first = int(cache_head_start or 0)
        with torch.no_grad():
            newest = Segment(write.chunk_start, write.chunk_end, key.detach().clone(), value.detach().clone())
            older = self._older(write.rewrites)
            segments = self._resident([*older, newest])
            recent = None if recent_window_tokens is None else int(recent_window_tokens)
            k, v = gather(segments, visible_positions(write, recent), self.dtype)
        self._segments, self._heads = segments, (first, first + key.shape[2])
        held = min(newest.end, self.cache_size)
        self.global_end_index.fill_(newest.end)
        self.local_end_index.fill_(held)
        return CausalAttentionKVView(k, v, 0, write.tokens, held, newest.end)

    def _older(self, rewrites: bool) -> list[Segment]:
        """The segments in front of the newest one, all of them packed."""
        segments: list[Segment] = self._segments
        if rewrites or not segments:
            return segments[:-1]
        keeps = self.quant_args.get("bits", 8) == 16
        return [*segments[:-1], segments[-1] if keeps else segments[-1].packed()]

    def _resident(self, segments: list[Segment]) -> list[Segment]:
        """The segments that hold a sink or one of the tokens that the cache has room for."""
        sink = sink_end([(s.start, s.end) for s in segments], self.sink_tokens)
        oldest = segments[-1].end - (self.cache_size - sink)
        return [s for s in segments if s.start < self.sink_tokens or s.end > oldest]
