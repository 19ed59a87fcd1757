"""What the numbers inside the tensors of flash attention must be, behind everything about the tensors themselves."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tensorpact.clauses import (
    Clause,
    at_least,
    at_most,
    distinct,
    ends_at,
    less_than,
    nondecreasing,
    starts_at,
    steps,
    steps_at_most,
    upto,
    values,
    within,
)

from ._flash_attention_number_errors import (
    APPEND_RANGE,
    BOUNDARIES_END,
    BOUNDARIES_ORDER,
    CACHE_ROW_RANGE,
    CACHE_ROW_REPEATED,
    LEFTPAD_RANGE,
    LENGTHS_RANGE,
    LONGER,
    PAGE_RANGE,
    USED_RANGE,
)


def new_rows(new: tuple[int, ...]) -> int:
    """New tokens of each sequence, where they are not packed.

    Args:
        new: Token axes of the new keys.
    """
    return new[1] if len(new) == 2 else 0


Rule = Callable[..., Any]
#: New tokens of each sequence; they add nothing to a call that appends none.
NEW = (new_rows, steps("cu_seqlens_k_new"))


def boundaries(name: str, total: Rule, longest: str | None = None, when: Rule | None = None) -> list[Clause]:
    """Where the sequences of packed tokens begin and end.

    Args:
        name: The boundaries.
        total: Tokens that they cut.
        longest: The argument that says how long a sequence is at most.
        when: Condition under which it does.
    """
    found = [
        values(name, starts_at(0), nondecreasing(), error=BOUNDARIES_ORDER),
        values(name, ends_at(total), error=BOUNDARIES_END, when=lambda allow_padded_tail: not allow_padded_tail),
        values(name, at_most(total), error=BOUNDARIES_END, when=lambda allow_padded_tail: allow_padded_tail),
    ]
    return [*found, values(name, steps_at_most(longest), error=LONGER, when=when)] if longest else found


def used_queries() -> list[Clause]:
    """How many queries of each sequence count."""
    return [
        values("seqused_q", at_least(0), at_most(steps("cu_seqlens_q")), error=USED_RANGE),
        values(
            "seqused_q",
            at_most(lambda tokens: tokens[1]),
            error=USED_RANGE,
            when=lambda cu_seqlens_q: cu_seqlens_q is None,
        ),
        values("seqused_q", at_most("max_seqlen_q"), error=LONGER),
    ]


def used_keys() -> list[Clause]:
    """How many keys of each sequence count."""
    return [
        values("seqused_k", at_least(0), at_most(steps("cu_seqlens_k")), error=USED_RANGE),
        values(
            "seqused_k",
            at_most(lambda keys: keys[1]),
            error=USED_RANGE,
            when=lambda cu_seqlens_k: cu_seqlens_k is None,
        ),
        values("seqused_k", at_most("max_seqlen_k"), error=LONGER),
    ]


def rows_of_the_cache() -> list[Clause]:
    """How far each row is filled, from where on, and which row belongs to which sequence."""
    return [
        values(
            "cache_seqlens",
            at_least(0),
            at_most("capacity"),
            error=LENGTHS_RANGE,
            when=lambda cache_seqlens: isinstance(cache_seqlens, Tensor),
        ),
        values(
            "cache_seqlens",
            at_most("capacity"),
            plus=new_rows,
            error=APPEND_RANGE,
            when=lambda cache_seqlens, k, cu_seqlens_k_new: (
                k is not None and cu_seqlens_k_new is None and isinstance(cache_seqlens, Tensor)
            ),
        ),
        values("cu_seqlens_k_new", steps_at_most("capacity"), plus="cache_seqlens", error=APPEND_RANGE),
        values("cache_leftpad", at_least(0), at_most("cache_seqlens"), error=LEFTPAD_RANGE),
        values(
            "cache_leftpad",
            at_most("capacity"),
            error=LEFTPAD_RANGE,
            when=lambda cache_seqlens: cache_seqlens is None,
        ),
        values(
            "cache_batch_idx",
            within(0, "rows"),
            error=CACHE_ROW_RANGE,
            when=lambda page_table: page_table is None,
        ),
        values("cache_batch_idx", within(0, "table"), error=CACHE_ROW_RANGE),
        values("cache_batch_idx", distinct(), error=CACHE_ROW_REPEATED, when=lambda k: k is not None),
    ]


def pages() -> list[Clause]:
    """Which pages the used columns of each row name.

    Where left padding, a window or a chunk may hide a whole page at the front of a row, a column may hold a negative
    number: clauses count columns from the front, and cannot say where the hidden ones end. With ``cache_batch_idx`` a
    row of the table belongs to another sequence than its number says, and none is looked at.
    """
    return [
        values(
            "page_table",
            within(0, "rows"),
            active=upto("cache_seqlens", per="slots", plus=NEW),
            error=PAGE_RANGE,
            when=lambda cache_batch_idx, hidden, slots: cache_batch_idx is None and hidden < slots,
        ),
        values(
            "page_table",
            less_than("rows"),
            active=upto("cache_seqlens", per="slots", plus=NEW),
            padding="negative",
            error=PAGE_RANGE,
            when=lambda cache_batch_idx, hidden, slots: cache_batch_idx is None and hidden >= slots,
        ),
    ]
