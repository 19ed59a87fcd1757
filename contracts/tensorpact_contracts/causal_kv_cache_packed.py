"""Contracts of the packed causal KV cache: the dense cache's statements with the packed cache's own public errors.

The documented errors are those of :mod:`tensorpact_contracts.causal_kv_cache`.
"""

from tensorpact import Contract
from tensorpact.clauses import let, require
from tensorpact.clauses import rank as rank_of

from ._causal_kv_cache_errors import packed_problem
from ._causal_kv_cache_segments import PackedState, SegmentWrite, plan_segment
from .causal_kv_cache import (
    CHUNK_DTYPE,
    CHUNK_RANK,
    CHUNK_SHAPE,
    CROWDED,
    PACKED_HEAD_START,
    PACKED_ORDER,
    PACKED_PIN,
    PACKED_RECENT,
    PACKED_REWRITE,
    PACKED_SETTINGS,
    SINK_OVERRUN,
    VALUE_SHAPE,
    WINDOW,
    empty_clause,
    head_clauses,
    head_start_clause,
    index_clause,
    slice_clause,
)

__all__ = ["PACKED_PIN_CHUNK", "PACKED_STATE", "PACKED_UPDATE"]

FAMILY = "causal_kv_cache"


def _write(self: PackedState, n: int, current_chunk_start: int) -> SegmentWrite:
    return plan_segment(self, n, int(current_chunk_start))


PACKED_STATE = Contract(
    "QVGPackedCausalKVCache",
    family=FAMILY,
    clauses=[
        index_clause(),
        require(lambda self: packed_problem(self) is None, error=PACKED_SETTINGS),
    ],
)

PACKED_UPDATE = Contract(
    "packed update_and_get_attention_kv",
    family=FAMILY,
    dims={
        "B": "batch",
        "n": "tokens of the chunk",
        "Hin": "heads of key and value, all of the cache or a slice",
        "D": "head dim",
    },
    clauses=[
        head_start_clause(PACKED_HEAD_START),
        rank_of("key", "value", error=CHUNK_RANK),
        let(write=_write),
        require(lambda write: write.same_size, error=PACKED_REWRITE, about="key"),
        require(lambda write: write.sequential, error=PACKED_ORDER, about="current_chunk_start"),
        require(lambda self: packed_problem(self) is None, error=PACKED_SETTINGS),
        *head_clauses(),
        require(lambda self, key: (key.shape[0], key.shape[3]) == self.chunk_axes[:2], error=CHUNK_SHAPE, about="key"),
        require(
            lambda self, key, value: tuple(value.shape) == (*key.shape[:3], self.chunk_axes[2]),
            error=VALUE_SHAPE,
            about="value",
        ),
        require(
            lambda self, key, value: self.chunk_storage == (key.dtype, key.device) == (value.dtype, value.device),
            error=CHUNK_DTYPE,
            about=("key", "value"),
        ),
        require(
            lambda recent_window_tokens: recent_window_tokens is None or recent_window_tokens >= 0,
            error=PACKED_RECENT,
            about="recent_window_tokens",
        ),
        empty_clause(),
        require(lambda write: write.fits, error=SINK_OVERRUN, about="key"),
        require(
            lambda write: write.window >= write.tokens,
            when=lambda recent_window_tokens: recent_window_tokens is None,
            error=WINDOW,
            about="key",
        ),
        require(
            lambda write: write.window - write.reserved >= write.tokens,
            when=lambda recent_window_tokens: recent_window_tokens is None,
            error=CROWDED,
            about="key",
        ),
        slice_clause(),
    ],
)

PACKED_PIN_CHUNK = Contract(
    "packed pin_current_chunk",
    family=FAMILY,
    clauses=[require(lambda m: m <= 0, error=PACKED_PIN, about="m")],
)
