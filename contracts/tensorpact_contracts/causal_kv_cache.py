"""Contracts of the causal self-attention KV cache: its state, its update and its pin.

Everything is decided before anything is written: where a chunk goes is worked out by the same arithmetic that the
update then follows, so that a refused call leaves buffers, ends and pin as they were.
"""

from torch import Tensor

from tensorpact import Contract, DocumentedError
from tensorpact._overlap import overlaps_itself, shares_bytes
from tensorpact.clauses import Clause, any_of, dtype, let, require, same_device, same_dtype, shape
from tensorpact.clauses import rank as rank_of

from ._causal_kv_cache_errors import (
    ALIASED,
    BUFFERS,
    CACHE_SIZE,
    CHUNK_DTYPE,
    CHUNK_RANK,
    CHUNK_SHAPE,
    CROWDED,
    EMPTY_CHUNK,
    ENDS,
    GAP,
    HEAD_RANGE,
    HEAD_SLICE,
    HEAD_START,
    HOST_ENDS,
    INDEX,
    MORE_HEADS,
    OVERLAPPING,
    PACKED_HEAD_START,
    PACKED_ORDER,
    PACKED_PIN,
    PACKED_RECENT,
    PACKED_REWRITE,
    PACKED_SETTINGS,
    PIN_LENGTH,
    PIN_LOST,
    RECENT_WINDOW,
    SETTINGS,
    SINK_OVERRUN,
    SINK_REWRITE,
    UNUSED_START,
    VALUE_SHAPE,
    WINDOW,
    WRITE_RANGE,
    settings_problem,
)
from ._causal_kv_cache_plan import CacheState, Write, plan_write, read_ends, read_item

__all__ = [
    "ALIASED",
    "BUFFERS",
    "CACHE_SIZE",
    "CHUNK_DTYPE",
    "CHUNK_RANK",
    "CHUNK_SHAPE",
    "CROWDED",
    "EMPTY_CHUNK",
    "ENDS",
    "GAP",
    "HEAD_RANGE",
    "HEAD_SLICE",
    "HEAD_START",
    "HOST_ENDS",
    "INDEX",
    "MORE_HEADS",
    "OVERLAPPING",
    "PACKED_HEAD_START",
    "PACKED_ORDER",
    "PACKED_PIN",
    "PACKED_RECENT",
    "PACKED_REWRITE",
    "PACKED_SETTINGS",
    "PIN",
    "PIN_LENGTH",
    "PIN_LOST",
    "RECENT_WINDOW",
    "SETTINGS",
    "SINK_OVERRUN",
    "SINK_REWRITE",
    "STATE",
    "UNUSED_START",
    "UPDATE",
    "VALUE_SHAPE",
    "WINDOW",
    "WRITE_RANGE",
    "empty_clause",
    "head_clauses",
    "head_start_clause",
    "index_clause",
    "slice_clause",
]

DIMS = {
    "B": "batch",
    "S": "token slots of the buffers",
    "n": "tokens of the chunk",
    "Hc": "heads of the cache",
    "Hin": "heads of key and value, all of the cache or a slice",
    "D": "head dim of keys",
    "Dv": "head dim of values",
}


def _host_ends_agree(self: CacheState) -> bool:
    """Whether the host integers are both there or both not, and the tensors say the same where that costs nothing."""
    ints = (self.global_end_index_int, self.local_end_index_int)
    if None in ints:
        return ints == (None, None)
    tensors = (self.global_end_index, self.local_end_index)
    return all(t.device.type != "cpu" or read_item(t) == i for t, i in zip(tensors, ints, strict=True))


def _ends_possible(self: CacheState) -> bool:
    total, filled = read_ends(self)
    if not 0 <= filled <= min(total, self.cache_size):
        return False
    return filled == total or filled == self.cache_size or self.allow_growth


def _write(self: CacheState, n: int, current_chunk_start: int) -> Write:
    return plan_write(self, n, int(current_chunk_start))


def _apart(self: CacheState, key: Tensor, value: Tensor) -> bool:
    """Whether a chunk lies outside the buffers and, where these are windows over storage, outside all of it."""
    return not any(shares_bytes(buffer, part) for buffer in self.written_memory for part in (key, value))


def index_clause() -> Clause:
    """Each end is one int64, and neither is the other: they part at the first eviction."""
    return any_of(
        dtype("self.global_end_index", "self.local_end_index"),
        require(lambda self: self.global_end_index.numel() == 1 == self.local_end_index.numel()),
        require(lambda self: not shares_bytes(self.global_end_index, self.local_end_index)),
        error=INDEX,
    )


def _buffers() -> Clause:
    """Keys and values have their tokens in the same slots."""
    return any_of(
        rank_of("self.k"),
        shape("self.v", axes="B S Hc"),  # and its rank
        same_dtype("self.k", "self.v"),
        same_device("self.k", "self.v"),
        error=BUFFERS,
    )


def _state() -> list[Clause]:
    """Clauses on the other fields."""
    return [
        require(lambda self: self.cache_size == self.k.shape[1], error=CACHE_SIZE),
        require(
            lambda self: not (overlaps_itself(self.k) or overlaps_itself(self.v) or shares_bytes(self.k, self.v)),
            error=OVERLAPPING,
        ),
        index_clause(),
        require(lambda self: settings_problem(self) is None, error=SETTINGS),
        require(_host_ends_agree, error=HOST_ENDS),
        require(_ends_possible, error=ENDS),
    ]


def head_clauses() -> list[Clause]:
    """Clauses on the slice of heads that a chunk brings, behind those that the public code has."""
    return [
        require(lambda self, key: key.shape[2] <= self.num_cache_heads, error=MORE_HEADS, about="key"),
        require(
            lambda self, key, cache_head_start: 0 <= cache_head_start <= self.num_cache_heads - key.shape[2],
            when=lambda self, key: key.shape[2] < self.num_cache_heads,
            error=HEAD_RANGE,
            about="cache_head_start",
        ),
        require(
            lambda cache_head_start: cache_head_start in (None, 0),
            when=lambda self, key: key.shape[2] == self.num_cache_heads,
            error=UNUSED_START,
            about="cache_head_start",
        ),
    ]


def empty_clause() -> Clause:
    """A chunk brings something: without heads it would still move the ends and bind the cache to an empty slice."""
    return require(lambda key: key.shape[1] >= 1 and key.shape[2] >= 1, error=EMPTY_CHUNK, about="key")


def slice_clause() -> Clause:
    """One cache holds one slice of heads until it is reset: ends and evictions are counted once, not by head."""
    return require(
        lambda self, key, cache_head_start: (
            self.head_slice in (None, (cache_head_start or 0, (cache_head_start or 0) + key.shape[2]))
        ),
        error=HEAD_SLICE,
        about="cache_head_start",
    )


def head_start_clause(error: DocumentedError) -> Clause:
    """A chunk with fewer heads than the cache says where its heads belong."""
    return require(
        lambda self, key, cache_head_start: cache_head_start is not None or key.shape[2] == self.num_cache_heads,
        error=error,
        about="cache_head_start",
    )


STATE = Contract(
    "CausalSelfAttentionKVCache",
    dims={n: DIMS[n] for n in ("B", "S", "Hc", "D", "Dv")},
    clauses=[_buffers(), *_state()],
)


UPDATE = Contract(
    "update_and_get_attention_kv",
    dims=DIMS,
    binds={"B": "self.k", "D": "self.k", "Dv": "self.v"},
    reference="tensorpact_kernels.causal_kv_cache.naive:naive_update_and_get_attention_kv",
    clauses=[
        head_start_clause(HEAD_START),
        rank_of("key", "value", error=CHUNK_RANK),
        let(write=_write),
        require(lambda write: write.in_range, error=WRITE_RANGE, about="current_chunk_start"),
        *head_clauses(),
        _buffers(),
        shape("key", axes="B D", error=CHUNK_SHAPE),
        shape("value", axes="B n Hin Dv", error=VALUE_SHAPE),
        any_of(same_dtype("self.k", "key", "value"), same_device("self.k", "key", "value"), error=CHUNK_DTYPE),
        require(
            lambda recent_window_tokens: recent_window_tokens is None or recent_window_tokens >= 0,
            error=RECENT_WINDOW,
            about="recent_window_tokens",
        ),
        *_state(),
        empty_clause(),
        require(lambda write: write.chunk_start <= write.previous_global, error=GAP, about="current_chunk_start"),
        require(lambda write: not write.evicted or write.start >= write.sink, error=SINK_OVERRUN, about="key"),
        require(lambda write: write.spares_sink, error=SINK_REWRITE, about="current_chunk_start"),
        require(lambda write: write.keeps_pin, error=PIN_LOST),
        require(
            lambda write: write.window >= write.tokens,
            when=lambda recent_window_tokens: recent_window_tokens is None,
            error=WINDOW,
            about="key",
        ),
        require(
            lambda write: not write.reserved or write.window - write.reserved >= write.tokens,
            when=lambda recent_window_tokens: recent_window_tokens is None,
            error=CROWDED,
            about="key",
        ),
        slice_clause(),
        require(
            _apart,
            error=ALIASED,
            about=("key", "value"),
        ),
    ],
)

PIN = Contract(
    "pin_current_chunk",
    clauses=[
        require(
            lambda self, m: m <= read_ends(self)[1],
            when=lambda self: self.sink_tokens > 0,
            error=PIN_LENGTH,
            about="m",
        )
    ],
)
