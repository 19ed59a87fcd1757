"""A key-value cache read and appended to by logical slots, in plain torch; rotary embedding of what is appended."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache, paged or not.

    Attributes:
        k: Keys: rows or pages, then slots; None where no key is ever read.
        v: Values, alike.
        page_table: Page of each stretch of slots of a row, or None for a cache without pages.
        batch_idx: Row of each sequence, or None where sequence and row have one number.
    """

    k: Tensor | None
    v: Tensor
    page_table: Tensor | None
    batch_idx: Tensor | None

    @property
    def capacity(self) -> int:
        """Slots of one row."""
        pages = 1 if self.page_table is None else self.page_table.shape[1]
        return pages * self.v.shape[1]

    def locate(self, sequence: int, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where logical slots lie: row or page, slot in it, and whether they exist at all.

        Args:
            sequence: Number of the sequence in the call.
            slots: Logical slots.
        """
        row = sequence if self.batch_idx is None else int(self.batch_idx[sequence])
        rows = self.v.shape[0] if self.page_table is None else self.page_table.shape[0]
        exists = (slots >= 0) & (slots < self.capacity) & (0 <= row < rows)
        inside = torch.where(exists, slots, 0)
        if self.page_table is None:
            return torch.full_like(inside, row).where(exists, 0), inside, exists
        if not bool(exists.any()):
            return torch.zeros_like(inside), torch.zeros_like(inside), exists
        page = self.v.shape[1]
        pages = self.page_table[row].to(inside.device)[inside // page].to(inside.dtype)
        exists = exists & (pages >= 0) & (pages < self.v.shape[0])
        return torch.where(exists, pages, 0), inside % page, exists

    def read(self, sequence: int, first: int, count: int, *, keys: bool) -> tuple[Tensor | None, Tensor, Tensor]:
        """Keys and values of neighbouring slots, and which of them exist; the others hold no numbers.

        Args:
            sequence: Number of the sequence in the call.
            first: First logical slot.
            count: Number of slots; what is beyond the capacity is left out.
            keys: Whether keys are wanted.
        """
        last = min(first + max(0, count), max(first, self.capacity))
        slots = torch.arange(first, last, device=self.v.device)
        row, slot, exists = self.locate(sequence, slots)
        if not bool(exists.any()):
            # The cache may have no row at all, so nothing of it is indexed.
            key = None if self.k is None or not keys else self.k.new_zeros((slots.shape[0], *self.k.shape[2:]))
            return key, self.v.new_zeros((slots.shape[0], *self.v.shape[2:])), exists
        key = self.k[row, slot] if self.k is not None and keys else None
        return key, self.v[row, slot], exists

    def append(self, sequence: int, first: int, k: Tensor, v: Tensor) -> None:
        """Write new tokens in place; one that has no slot is dropped.

        Args:
            sequence: Number of the sequence in the call.
            first: Logical slot of the first token.
            k: Keys, rotated already.
            v: Values.
        """
        slots = torch.arange(first, first + v.shape[0], device=self.v.device)
        row, slot, exists = self.locate(sequence, slots)
        row, slot = row[exists], slot[exists]
        if self.k is not None:
            self.k[row, slot] = k[exists].to(self.k.dtype)
        self.v[row, slot] = v[exists].to(self.v.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate the first columns of each head, in float32 at least; the columns behind them stay.

    Args:
        x: Tokens, heads and columns.
        cos: A row for each position, a column for each pair.
        sin: Alike.
        positions: Position of each token; one that the table does not have stays unrotated.
        interleaved: Whether neighbours are a pair; else a column goes with the one half the rotated width behind it.
    """
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    half = cos.shape[1]
    known = (positions >= 0) & (positions < cos.shape[0])
    if not bool(known.any()):
        return x.clone()
    at = torch.where(known, positions, 0)
    c = torch.where(known[:, None], cos[at].to(compute), 1.0)[:, None]
    s = torch.where(known[:, None], sin[at].to(compute), 0.0)[:, None]
    turned = x[..., : 2 * half].to(compute)
    first = turned[..., 0::2] if interleaved else turned[..., :half]
    second = turned[..., 1::2] if interleaved else turned[..., half:]
    pair = (first * c - second * s, first * s + second * c)
    mixed = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((mixed.to(x.dtype), x[..., 2 * half :]), dim=-1)
