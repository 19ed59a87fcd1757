"""One call of flash attention as the launchers see it: what is attended to what, whatever the public form was."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tensorpact_kernels.flash_attention.plan import Mask


@dataclass(frozen=True, slots=True)
class Rotary:
    """How keys and queries are rotated.

    Attributes:
        cos: A row for each position, a column for each pair.
        sin: Alike.
        seqlens: Position of each sequence's first new token, where it is not the cache's length.
        interleaved: Whether neighbouring columns are a pair, or those of the two halves.
    """

    cos: Tensor
    sin: Tensor
    seqlens: Tensor | None
    interleaved: bool

    @property
    def dim(self) -> int:
        """Columns that are rotated."""
        return 2 * self.cos.shape[1]


@dataclass(frozen=True, slots=True)
class Queries:
    """Query side of a call.

    Attributes:
        q: Queries that meet the keys; batch first, or packed with ``cu_seqlens``; None where only values are met.
        qv: Queries that meet the values, or None.
        cu_seqlens: Where each packed sequence begins, and the last one's end.
        used: Queries that each sequence has, where they are fewer than its place holds.
        longest: Most queries of a sequence.
    """

    q: Tensor | None
    qv: Tensor | None
    cu_seqlens: Tensor | None
    used: Tensor | None
    longest: int

    @property
    def given(self) -> Tensor:
        """Either of the two, for the leading shape."""
        # The contract has seen that one of them is there.
        return cast("Tensor", self.qv if self.q is None else self.q)

    @property
    def sequences(self) -> int:
        """Sequences of the call."""
        return self.given.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def tokens(self) -> int:
        """Query tokens of all sequences, with the unused ones."""
        return self.given.shape[0] if self.cu_seqlens is not None else self.given.shape[0] * self.given.shape[1]


@dataclass(frozen=True, slots=True)
class Keys:
    """Key side of a call: a cache by rows or pages, a dense batch, or packed sequences.

    Attributes:
        k: Keys; row or page, slot, head, column; None where they are not read.
        v: Values, alike.
        cu_seqlens: Where each packed sequence begins; the leading axis of ``k`` and ``v`` has size 1 then.
        filled: Slots that are filled before new tokens come: one number for all sequences, or a tensor.
        capacity: Most slots of a sequence.
        leftpad: First slot of each sequence that counts.
        batch_idx: Row of each sequence.
        page_table: Page of each stretch of slots of a row.
        new: New tokens of each sequence, where every one has as many.
        cu_new: Where each sequence's packed new tokens begin.
        new_tokens: New tokens of all sequences, where they are packed.
        longest: Most keys of a sequence, where the caller says so; a longer one is still read to its end.
    """

    k: Tensor | None
    v: Tensor
    cu_seqlens: Tensor | None
    filled: int | Tensor
    capacity: int
    leftpad: Tensor | None = None
    batch_idx: Tensor | None = None
    page_table: Tensor | None = None
    new: int = 0
    cu_new: Tensor | None = None
    new_tokens: int = 0
    longest: int | None = None

    @property
    def rows(self) -> int:
        """Rows that a sequence may be in."""
        return self.v.shape[0] if self.page_table is None else self.page_table.shape[0]

    @property
    def page(self) -> int:
        """Slots of a page; 1 where there are none."""
        return 1 if self.page_table is None else self.v.shape[1]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of either function.

    Attributes:
        queries: Query side.
        keys: Key side, new tokens appended.
        out: Result, written.
        lse: Natural log of the softmax denominators, written where given; heads before tokens.
        scale: Factor on the scores.
        softcap: Bound that scores bend towards; 0 for none.
        mask: What a query may see.
        sinks: A logit of each head that joins the softmax without a value.
        rotary: How the queries are rotated.
        num_splits: Most programs that share a sequence's keys; 0 chooses.
    """

    queries: Queries
    keys: Keys
    out: Tensor
    lse: Tensor | None
    scale: float
    softcap: float
    mask: Mask
    sinks: Tensor | None
    rotary: Rotary | None
    num_splits: int


def results(queries: Queries, value_dim: int, out: Tensor | None, *, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Return room for the result, the caller's if there is one, and for the log denominators if they are wanted.

    Args:
        queries: Query side, for the leading shape.
        value_dim: Columns of a value.
        out: The caller's result tensor.
        with_lse: Whether log denominators are wanted.
    """
    given = queries.given
    if out is None:
        out = torch.empty((*given.shape[:-1], value_dim), dtype=given.dtype, device=given.device)
    if not with_lse:
        return out, None
    heads = given.shape[-2]
    shape = (given.shape[0], heads, given.shape[1]) if queries.cu_seqlens is None else (heads, given.shape[0])
    return out, torch.empty(shape, dtype=torch.float32, device=given.device)
