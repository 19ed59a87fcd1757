"""Positions of flash attention: rows of the rotary tables that are read, and queries in front of the first key."""

from torch import Tensor

from tensorpact.clauses import Clause, at_least, at_most, steps, steps_at_most, values

from ._flash_attention_number_errors import CHUNK_KEYS, ROTARY_RANGE
from ._flash_attention_rules import counts_up
from ._flash_attention_values import NEW, new_rows


def _packed_queries_turn(
    cu_seqlens_q: Tensor | None,
    max_seqlen_q: int | None,
    only_qv: bool,
    causal: bool,
    window_size: tuple[int, int],
    attention_chunk: int | None,
    capacity: int,
) -> bool:
    """Whether packed queries are rotated to one position after the other."""
    return (
        cu_seqlens_q is not None
        and not only_qv
        and counts_up(max_seqlen_q or 0, causal, window_size, attention_chunk, capacity)
    )


def _packed_queries_turn_from_starts(
    all_turn: bool,
    cu_seqlens_q: Tensor | None,
    max_seqlen_q: int | None,
    only_qv: bool,
    causal: bool,
    window_size: tuple[int, int],
    attention_chunk: int | None,
    capacity: int,
) -> bool:
    return all_turn and _packed_queries_turn(
        cu_seqlens_q, max_seqlen_q, only_qv, causal, window_size, attention_chunk, capacity
    )


def _packed_queries_turn_from_lengths(
    cached: int,
    So: int,
    rotary_seqlens: Tensor | None,
    cu_seqlens_q: Tensor | None,
    max_seqlen_q: int | None,
    only_qv: bool,
    causal: bool,
    window_size: tuple[int, int],
    attention_chunk: int | None,
    capacity: int,
) -> bool:
    """Whether they are rotated on from the length of their row, or to a length that is no position of the tables."""
    if rotary_seqlens is not None or only_qv:
        return False
    return cached >= So or _packed_queries_turn(
        cu_seqlens_q, max_seqlen_q, only_qv, causal, window_size, attention_chunk, capacity
    )


def rotations() -> list[Clause]:
    """Rows of the rotary tables that are read.

    A sequence without a rotated token may be anywhere, and a clause cannot leave such sequences out. Where there may be
    some, ``rotary_seqlens`` are not looked at, and ``reach`` is what a length alone may come to.
    """
    return [
        values("rotary_seqlens", at_least(0), error=ROTARY_RANGE, when=lambda all_turn: all_turn),
        values("rotary_seqlens", at_most("So"), plus="turned", error=ROTARY_RANGE, when=lambda turned: turned > 0),
        values(
            "rotary_seqlens",
            at_most("So"),
            plus=steps("cu_seqlens_k_new"),
            error=ROTARY_RANGE,
            when=lambda all_turn, k_cache: all_turn and k_cache is not None,
        ),
        values(
            "rotary_seqlens",
            at_most("So"),
            plus=steps("cu_seqlens_q"),
            error=ROTARY_RANGE,
            when=_packed_queries_turn_from_starts,
        ),
        values(
            "cache_seqlens",
            at_most("So"),
            plus="turned",
            error=ROTARY_RANGE,
            when=lambda cache_seqlens, rotary_seqlens, turned: (
                rotary_seqlens is None and isinstance(cache_seqlens, Tensor) and turned > 0
            ),
        ),
        values(
            "cu_seqlens_k_new",
            steps_at_most("reach"),
            plus="cache_seqlens",
            error=ROTARY_RANGE,
            when=lambda rotary_seqlens, k_cache: rotary_seqlens is None and k_cache is not None,
        ),
        values(
            "cu_seqlens_q",
            steps_at_most("reach"),
            plus="cache_seqlens",
            error=ROTARY_RANGE,
            when=_packed_queries_turn_from_lengths,
        ),
    ]


def chunks() -> list[Clause]:
    """Keys that stand in front of the queries of a chunked call."""
    return [
        values(
            "cache_seqlens",
            at_least(lambda tokens: tokens[1]),
            plus=NEW,
            error=CHUNK_KEYS,
            when=lambda cache_seqlens, cache_leftpad, cu_seqlens_q, attention_chunk: (
                bool(attention_chunk)
                and cu_seqlens_q is None
                and cache_leftpad is None
                and isinstance(cache_seqlens, Tensor)
            ),
        ),
        values(
            "cache_seqlens",
            at_least(steps("cu_seqlens_q")),
            plus=NEW,
            error=CHUNK_KEYS,
            when=lambda cache_seqlens, cache_leftpad, attention_chunk: (
                bool(attention_chunk) and cache_leftpad is None and isinstance(cache_seqlens, Tensor)
            ),
        ),
        values(
            "cu_seqlens_q",
            steps_at_most("cached"),
            plus=lambda new: -new_rows(new),
            error=CHUNK_KEYS,
            when=lambda cached, cache_leftpad, cu_seqlens_k_new, attention_chunk: (
                bool(attention_chunk) and cache_leftpad is None and cached >= 0 and cu_seqlens_k_new is None
            ),
        ),
        values(
            "cu_seqlens_q",
            steps_at_most(steps("cu_seqlens_k_new")),
            plus=lambda cached: -cached,
            error=CHUNK_KEYS,
            when=lambda cached, cache_leftpad, attention_chunk: (
                bool(attention_chunk) and cache_leftpad is None and cached >= 0
            ),
        ),
    ]
