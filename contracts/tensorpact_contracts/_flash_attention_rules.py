"""Questions that the contracts of flash attention ask about numbers on the host and about groups of arguments."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, cast

from torch import Tensor

from ._values import fits_float


def rotary_rows(turned: int, cached: int, seqlens: Tensor | None) -> int:
    """Rows of the rotary table that a call reads for certain, as far as shapes and ints tell.

    Args:
        turned: Tokens of every sequence that are rotated for certain, one behind the other.
        cached: Tokens in the cache before the call; -1 where a tensor holds them.
        seqlens: First positions, in place of these.
    """
    first = cached if seqlens is None and cached > 0 else 0
    return first + turned if turned else 0


def turned_rows(
    tokens: tuple[int, ...],
    k: Tensor,
    k_cache: Tensor | None,
    only_qv: bool,
    causal: bool,
    window_size: tuple[int, int],
    attention_chunk: int | None,
    capacity: int,
) -> int:
    """Tokens of every sequence that are rotated for certain, one behind the other; 0 where all may be packed.

    Keys are rotated on their way into a cache of keys, and queries that meet keys.

    Args:
        tokens: Token axes of the queries.
        k: New keys.
        k_cache: Where they go, if anywhere.
        only_qv: Whether no key is read.
        causal: Whether no key behind a query's own place is seen.
        window_size: Keys seen before and behind a query's own place.
        attention_chunk: Length of a chunk, or nothing.
        capacity: Slots of one row.
    """
    keys = k.shape[1] if k.ndim == 4 and k.shape[0] and k_cache is not None else 0
    return max(keys, 0 if only_qv else turned_queries(tokens, causal, window_size, attention_chunk, capacity))


def all_turn(
    turned: int, tokens: tuple[int, ...], k: Tensor, k_cache: Tensor | None, only_qv: bool, B: int, padded_tail: bool
) -> bool:
    """Whether every sequence of a call has a token that is rotated, as far as shapes tell.

    One that has none may be anywhere: nothing reads the rotary tables for it.

    Args:
        turned: What ``turned_rows`` says.
        tokens: Token axes of the queries.
        k: New keys.
        k_cache: Where they go, if anywhere.
        only_qv: Whether no key is read.
        B: Sequences of the call.
        padded_tail: Whether packed tokens may belong to no sequence.
    """
    keys = k.shape[0] if k.ndim == 3 and k_cache is not None else 0
    queries = tokens[0] if len(tokens) == 1 and not only_qv else 0
    return turned > 0 or (B == 1 and not padded_tail and max(keys, queries) > 0)


def turned_queries(
    tokens: tuple[int, ...], causal: bool, window_size: tuple[int, int], attention_chunk: int | None, capacity: int
) -> int:
    """Positions that the queries of each sequence are rotated to; 0 where they are packed.

    Args:
        tokens: Token axes of the queries.
        causal: Whether no key behind a query's own place is seen.
        window_size: Keys seen before and behind a query's own place.
        attention_chunk: Length of a chunk, or nothing.
        capacity: Slots of one row.
    """
    queries = tokens[1] if len(tokens) == 2 and tokens[0] else 0
    return queries if counts_up(queries, causal, window_size, attention_chunk, capacity) else min(queries, 1)


def counts_up(
    queries: int, causal: bool, window_size: tuple[int, int], attention_chunk: int | None, capacity: int
) -> bool:
    """Whether queries are rotated to one position after the other: a mask is left without what can hide nothing.

    Args:
        queries: Queries of the longest sequence.
        causal: Whether no key behind a query's own place is seen.
        window_size: Keys seen before and behind a query's own place.
        attention_chunk: Length of a chunk, or nothing.
        capacity: Slots of one row.
    """
    left, right = window_size[0], 0 if causal else window_size[1]
    return 0 <= left < capacity - 1 or 0 <= right < queries - 1 or bool(attention_chunk)


def first_needed(
    tokens: tuple[int, ...],
    k: Tensor | None,
    cached: int,
    leftpad: Tensor | None,
    window_size: tuple[int, int],
    attention_chunk: int | None,
    capacity: int,
) -> int:
    """The last slot that may be the first one of its row to be needed: what lies before it may be hidden.

    Padding, a window on the left and chunks hide the front of a row, as far as shapes and ints tell; the new tokens of
    a row need their slots, whoever sees them.

    Args:
        tokens: Token axes of the queries.
        k: New keys.
        cached: Tokens in the cache before the call; -1 where a tensor holds them.
        leftpad: Slots in front of the first token.
        window_size: Keys seen before and behind a query's own place.
        attention_chunk: Length of a chunk, or nothing.
        capacity: Slots of one row.
    """
    new = k.shape[1] if k is not None and k.ndim == 4 else 0
    known = cached >= 0 and (k is None or k.ndim == 4)
    length = cached if cached >= 0 else capacity
    # The last query stands at the place of the last key.
    place = (length + new if known else capacity) - (max(tokens[1], 1) if len(tokens) == 2 else 1)
    # All of a row may be padding.
    hidden = 0 if leftpad is None else capacity
    if window_size[0] >= 0:
        hidden = max(hidden, place - window_size[0])
    if attention_chunk:
        # Chunks are counted from the first key, wherever padding puts it.
        hidden = max(hidden, place if leftpad is not None else place // attention_chunk * attention_chunk)
    return min(hidden, length) if new else hidden


def keys_of(k: Tensor | None, lengths: Any, leftpad: Tensor | None, capacity: int) -> int | None:
    """Keys of every sequence once new ones are appended, or None where the host does not know them.

    Args:
        k: New keys.
        lengths: Tokens in the cache before the call.
        leftpad: Slots in front of the first token.
        capacity: Slots of one row.
    """
    if leftpad is not None or isinstance(lengths, Tensor) or (k is not None and k.ndim != 4):
        return None
    return (capacity if lengths is None else lengths) + (0 if k is None else k.shape[1])


def keys_beside(cached: int, k: Tensor | None) -> int:
    """Keys of every sequence that a comparison of packed queries with keys has on neither side.

    Packed new keys are compared with the queries that those in the cache do not go to; else it is the other way round.

    Args:
        cached: Tokens in the cache before the call.
        k: New keys.
    """
    return 0 if k is None else k.shape[1] if k.ndim == 4 else cached


def chunk_fits(
    tokens: tuple[int, ...],
    k: Tensor | None,
    lengths: Any,
    leftpad: Tensor | None,
    capacity: int,
    attention_chunk: int | None,
) -> bool:
    """Whether no query stands before the first key of a chunked call, as far as the host knows.

    Args:
        tokens: Token axes of the queries.
        k: New keys.
        lengths: Tokens in the cache before the call.
        leftpad: Slots in front of the first token.
        capacity: Slots of one row.
        attention_chunk: Length of a chunk, or nothing.
    """
    if not attention_chunk or len(tokens) != 2:
        return True
    keys = keys_of(k, lengths, leftpad, capacity)
    return keys is None or keys >= tokens[1]


def length_fits(lengths: Any, k: Tensor | None, capacity: int) -> bool:
    """Whether a length that is one number leaves the new tokens within a row.

    Args:
        lengths: Tokens in the cache before the call.
        k: New keys.
        capacity: Slots of one row.
    """
    if lengths is None or isinstance(lengths, Tensor):
        return True
    return 0 <= lengths <= capacity - (k.shape[1] if k is not None and k.ndim == 4 else 0)


def new_tokens_fit(k: Tensor, capacity: int, B: int) -> bool:
    """Whether new tokens find slots in the longest rows there could be.

    Args:
        k: New keys.
        capacity: Slots of one row.
        B: Sequences of the call.
    """
    return k.shape[1] <= capacity if k.ndim == 4 else k.shape[0] <= B * capacity


def is_window(window_size: Any) -> bool:
    """Whether a window is two integers, each -1 or a number of keys.

    Args:
        window_size: What the caller gave for one.
    """
    if not isinstance(window_size, Sequence) or isinstance(window_size, str | bytes):
        return False
    sides = cast("Sequence[Any]", window_size)
    return len(sides) == 2 and all(_is_side(side) for side in sides)


def _is_side(side: Any) -> bool:
    whole = type(side) is int or (isinstance(side, Integral) and not isinstance(side, bool))
    return whole and int(side) >= -1


def is_scale(softmax_scale: float | None) -> bool:
    """Whether a scale is left out, or finite and above 0.

    Args:
        softmax_scale: Factor on the scores.
    """
    return softmax_scale is None or (softmax_scale > 0 and fits_float(softmax_scale))


def is_cap(softcap: float) -> bool:
    """Whether a cap is off, or finite and above 0.

    Args:
        softcap: Bound that scores bend towards.
    """
    return softcap >= 0 and fits_float(softcap)


def has_axes(tensor: Tensor | None, packed: bool) -> bool:
    """Whether tokens lie on one axis where they are packed, and on two where they are not.

    Args:
        tensor: Tokens in front, heads and columns behind.
        packed: Whether there are boundaries.
    """
    return tensor is None or tensor.ndim == (3 if packed else 4)


def holds_batch(tensor: Tensor | None, packed: bool, B: int) -> bool:
    """Whether new tokens lie as they should and belong to this many sequences.

    Args:
        tensor: Tokens in front, heads and columns behind.
        packed: Whether there are boundaries, which then say how many sequences there are.
        B: Sequences of the call.
    """
    return tensor is None or (has_axes(tensor, packed) and (packed or tensor.shape[0] == B))
