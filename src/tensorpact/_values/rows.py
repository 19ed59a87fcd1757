"""One check of one call, with its bounds as numbers and tensors; and the first entry on which it does not hold."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from .saturating import HIGHEST, LOWEST, factor, held, held_exactly, steps_of, total

RANGE, ORDER, MULTIPLE, DISTINCT, FINITE, SAME_EMPTY, STEPS = range(7)
ALL, SPAN, COLUMNS, LIVE = range(4)
KINDS = {
    "nondecreasing": ORDER,
    "multiple_of": MULTIPLE,
    "distinct": DISTINCT,
    "finite": FINITE,
    "same_empty": SAME_EMPTY,
    "steps_at_most": STEPS,
}
#: What may hold offsets whose steps count, one for each row.
BOUND_STEPS, PLUS_STEPS, LENGTH_STEPS = 1, 2, 4
#: So many numbers in host memory are read one by one.
_FEW = 1024
#: A tensor, or numbers that are on the host already.
Numbers = Tensor | Sequence[int]


@dataclass(slots=True)
class Row:
    """One check of one call.

    Attributes:
        kind: ``RANGE`` and so on.
        numbers: What is looked at.
        lower: Smallest number allowed; the divisor of a multiple.
        upper: Largest number allowed; on top of ``upper_of`` where that is given.
        first: Only the first entry counts.
        last: Only the last entry counts.
        lower_of: A lower bound for each entry of the first axis.
        upper_of: An upper bound for each entry of the first axis.
        plus: Added to each entry.
        plus_of: Added to each entry of the first axis.
        mode: ``ALL`` entries count, those in the ``SPAN`` of some offsets, the first ``COLUMNS`` of each row, or the
            rows that are ``LIVE``.
        active: Offsets, lengths, or numbers that are negative for rows of padding.
        per: Units of a length in one column.
        longer: Added to each length.
        longer_of: Added to the length of each row.
        steps: Which of the bounds by row, ``plus_of`` and ``longer_of`` are offsets, whose steps count.
        padding: Entries not looked at: ``"negative"`` ones, one number, or None.
        other: The other vector of ``same_empty``.
        shape: Sizes of the numbers, where they are a list now and were a tensor.
        saturates: Whether sums stop at what 64 bits hold, as they do for tensors.
    """

    kind: int
    numbers: Numbers
    lower: int = LOWEST
    upper: int = HIGHEST
    first: bool = False
    last: bool = False
    lower_of: Numbers | None = None
    upper_of: Numbers | None = None
    plus: int = 0
    plus_of: Numbers | None = None
    mode: int = ALL
    active: Numbers | None = None
    per: int = 1
    longer: int = 0
    longer_of: Numbers | None = None
    steps: int = 0
    padding: int | str | None = None
    other: Numbers | None = None
    shape: tuple[int, ...] = ()
    saturates: bool = False

    def parts(self) -> Iterable[Numbers]:
        """Everything that holds numbers."""
        bounds = (self.lower_of, self.upper_of, self.plus_of, self.longer_of)
        parts = (self.numbers, *bounds, self.active, self.other)
        return (p for p in parts if p is not None)

    def fits(self) -> bool:
        """Whether what is by row has as many entries as there are rows, or one for all of them."""
        count = (
            self.numbers.shape[0] if isinstance(self.numbers, Tensor) and self.numbers.ndim else _length(self.numbers)
        )
        if self.other is not None:
            return _length(self.other) == count
        count -= self.kind == STEPS
        active = self.active if self.mode in (COLUMNS, LIVE) else None
        given = ((self.lower_of, BOUND_STEPS), (self.upper_of, BOUND_STEPS), (self.plus_of, PLUS_STEPS))
        for numbers, bit in (*given, (self.longer_of, LENGTH_STEPS), (active, 0)):
            by_steps = self.steps & bit
            if numbers is None or (not by_steps and _length(numbers) == 1):
                continue
            if _length(numbers) != count + bool(by_steps):
                return False
        return True

    def span(self) -> tuple[int, int]:
        """The places that come into question, by number of entries alone."""
        count = _length(self.numbers)
        if self.first or self.last:
            return (0, min(count, 1)) if self.first else (max(count - 1, 0), count)
        if self.kind == ORDER:
            return 1, max(count, 1)
        return 0, max(count - (self.kind in (SAME_EMPTY, STEPS)), 0)


@dataclass(frozen=True, slots=True)
class Breach:
    """An entry on which a check does not hold.

    Attributes:
        position: Place of the entry, counted along all axes.
        value: The number there, with what is added to it; the length of the sequence where its two offsets are read.
        limit: The bound that it breaks, or the number that it should be or be unlike.
    """

    position: int
    value: int | float
    limit: int


def _length(numbers: Numbers) -> int:
    return numbers.numel() if isinstance(numbers, Tensor) else len(numbers)


def place_text(position: int, shape: Sequence[int]) -> str:
    """A place by its index along each axis."""
    indices: list[int] = []
    for size in reversed(shape):
        indices.insert(0, position % max(size, 1))
        position //= max(size, 1)
    return ", ".join(map(str, indices))


def first_breach(row: Row) -> Breach | None:
    """The first entry that breaks a check, where all of it can be read now."""
    if all(not isinstance(part, Tensor) for part in row.parts()):
        return _in_sequence(row)
    if row.kind != FINITE and all(_length(part) <= _FEW and _is_near(part) for part in row.parts()):
        return _in_sequence(_listed(row))
    return _as_breach(as_ints(reduced(row)), row)


def first_breaches(rows: Sequence[Row]) -> list[Breach | None]:
    """The same for several checks on one device, with one read for all of them."""
    found = [reduced(row) for row in rows]
    read = as_ints(torch.cat([f.to(found[0].device) for f in found]))
    return [_as_breach(read[3 * i : 3 * i + 3], row) for i, row in enumerate(rows)]


def as_ints(tensor: Tensor) -> list[int]:
    """The numbers of a tensor, in one read."""
    return cast("list[int]", tensor.reshape(-1).tolist())


def _is_near(numbers: Numbers) -> bool:
    # What a clause reads elsewhere than in host memory is handed out whole; only CUDA has a reduction of its own.
    return not isinstance(numbers, Tensor) or not numbers.is_cuda


def _listed(row: Row) -> Row:
    """A row whose tensors are lists, which for a few numbers are looked at faster than by torch."""
    names = ("numbers", "lower_of", "upper_of", "plus_of", "longer_of", "active", "other")
    parts = {name: getattr(row, name) for name in names}
    lists: dict[str, Any] = {n: as_ints(p) for n, p in parts.items() if isinstance(p, Tensor)}
    shape = tuple(row.numbers.shape) if isinstance(row.numbers, Tensor) else ()
    return replace(row, **lists, shape=shape, saturates=True)


def _as_breach(read: list[int], row: Row) -> Breach | None:
    position, value, limit = read
    if position < 0:
        return None
    return Breach(position, as_float(value, row.numbers) if row.kind == FINITE else value, limit)


def as_float(bits: int, numbers: Numbers) -> float:
    """The float that a word of bits stands for."""
    if not isinstance(numbers, Tensor):
        return math.nan
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(numbers.element_size(), torch.int64)
    shift = 8 * width.itemsize
    signed = bits - (1 << shift) if bits >= 1 << (shift - 1) else bits
    return float(torch.tensor([signed], dtype=width, device="cpu").view(numbers.dtype).to(torch.float64))


def reduced(row: Row) -> Tensor:
    """Position, value and limit of the first entry that breaks a check; position -1 where none does.

    All of it happens on the device of the numbers, so that one read serves several checks.
    """
    numbers = as_tensor(row.numbers)
    begin, end = row.span()
    device = numbers.device
    if begin >= end:
        return torch.tensor([-1, 0, 0], device=device)
    places = torch.arange(begin, end, device=device)
    flat = _bits(numbers.reshape(-1)) if row.kind == FINITE else numbers.reshape(-1).to(torch.int64)
    inner = math.prod(numbers.shape[1:]) if numbers.ndim else 1
    rows = places // max(inner, 1)
    value, limit = total(flat[places], row.plus), torch.zeros_like(places)
    if row.kind == STEPS:
        value = total(steps_of(flat), row.plus)
    if row.plus_of is not None:
        value = total(value, _of(row.plus_of, rows, steps=row.steps & PLUS_STEPS))
    if row.kind in (RANGE, STEPS):
        by_steps = row.steps & BOUND_STEPS
        lower, upper = (
            _bound(fixed, of, rows, by_steps) for fixed, of in ((row.lower, row.lower_of), (row.upper, row.upper_of))
        )
        low = value < lower
        broken, limit = low | (value > upper), torch.where(low, lower, upper)
    elif row.kind == ORDER:
        limit = flat[places - 1]
        broken = value < limit
    elif row.kind == MULTIPLE:
        limit = _bound(row.lower, row.lower_of, rows)
        broken = (limit < 1) | (value % limit.clamp(min=1) != 0)
    elif row.kind == DISTINCT:
        limit = value
        broken = _repeats(flat)
    elif row.kind == FINITE:
        broken = ~torch.isfinite(numbers.reshape(-1).to(torch.float64))
    else:
        value, limit = flat[1:] - flat[:-1], torch.diff(_of(cast(Numbers, row.other), None, device))
        broken = (value == 0) != (limit == 0)
    broken = broken & _counts(row, numbers, places, rows, flat)
    at = torch.where(broken, places, end).min()
    spot = (at - begin).clamp(max=end - begin - 1)
    return torch.stack([torch.where(at < end, at, -1), value[spot], limit[spot]])


def as_tensor(numbers: Numbers) -> Tensor:
    """Numbers as a tensor; what no 64 bits hold becomes the largest or smallest that they do."""
    if isinstance(numbers, Tensor):
        return numbers
    return torch.tensor([held(n) for n in numbers], dtype=torch.int64, device="cpu")


def _bits(flat: Tensor) -> Tensor:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64)
    return flat.contiguous().view(width).to(torch.int64)


def _of(numbers: Numbers, rows: Tensor | None, device: torch.device | None = None, steps: int = 0) -> Tensor:
    given = as_tensor(numbers).reshape(-1).to(torch.int64)
    if steps and rows is not None:
        return steps_of(given.to(rows.device))[rows]
    if rows is None:
        return given.to(device)
    given = given.to(rows.device)
    return given.expand(rows.shape) if given.numel() == 1 else given[rows]


def _bound(fixed: int, of: Numbers | None, rows: Tensor, steps: int = 0) -> Tensor:
    return torch.full_like(rows, held(fixed)) if of is None else total(_of(of, rows, steps=steps), fixed)


def _repeats(flat: Tensor) -> Tensor:
    """Which entries stand further in front too."""
    order = torch.argsort(flat, stable=True)
    ordered = flat[order]
    again = torch.zeros_like(flat, dtype=torch.bool)
    again[order[1:]] = ordered[1:] == ordered[:-1]
    return again


def _counts(row: Row, numbers: Tensor, places: Tensor, rows: Tensor, flat: Tensor) -> Tensor:
    counts: Tensor = torch.ones_like(places, dtype=torch.bool)
    if row.padding == "negative":
        counts = torch.ge(flat[places], 0)
    elif isinstance(row.padding, int) and held_exactly(row.padding):
        counts = torch.ne(flat[places], row.padding)
    if row.active is None:
        return counts
    if row.mode == SPAN:
        offsets = _of(row.active, None, places.device)
        inside = torch.zeros_like(places, dtype=torch.bool)
        if offsets.numel():
            inside = torch.logical_and(torch.ge(places, offsets[0]), torch.lt(places, offsets[-1]))
        return torch.logical_and(counts, inside)
    if row.mode == LIVE:
        return torch.logical_and(counts, torch.ge(_of(row.active, rows), 0))
    size = max(numbers.shape[-1], 1)
    length = total(_of(row.active, rows), row.longer)
    if row.longer_of is not None:
        length = total(length, _of(row.longer_of, rows, steps=row.steps & LENGTH_STEPS))
    return torch.logical_and(counts, torch.lt(places % size * factor(row.per, size), length))


def _in_sequence(row: Row) -> Breach | None:
    """The same for numbers on the host, one after the other."""
    numbers = cast("Sequence[int]", row.numbers)
    begin, end = row.span()
    if row.kind == SAME_EMPTY:
        lengths = zip(pairwise(numbers), pairwise(cast("Sequence[int]", row.other)), strict=True)
        for place, ((a, b), (c, d)) in enumerate(lengths):
            if (a == b) != (c == d):
                return Breach(place, b - a, d - c)
        return None
    seen: set[int] = set()
    for place in range(begin, end):
        entry = numbers[place]
        if _is_padding(entry, row.padding) or not _is_active(row, place):
            continue
        breach = _of_entry(row, place, entry, seen)
        if breach is not None:
            return breach
    return None


def _of_entry(row: Row, place: int, entry: int, seen: set[int]) -> Breach | None:
    if row.kind == ORDER:
        before = cast("Sequence[int]", row.numbers)[place - 1]
        return Breach(place, entry, before) if entry < before else None
    if row.kind == DISTINCT:
        if entry in seen:
            return Breach(place, entry, entry)
        seen.add(entry)
        return None
    line = place // max(math.prod(row.shape[1:]), 1)
    if row.kind == STEPS:
        entry = _step(row, cast("Sequence[int]", row.numbers), place)
    value = _sum(row, _sum(row, entry, row.plus), _by_row(row, row.plus_of, line, PLUS_STEPS))
    lower = _sum(row, row.lower, _by_row(row, row.lower_of, line, BOUND_STEPS))
    upper = _sum(row, row.upper, _by_row(row, row.upper_of, line, BOUND_STEPS))
    if row.kind == MULTIPLE:
        # Nothing is a multiple of a unit below 1, which a call may bring.
        return Breach(place, value, lower) if lower < 1 or value % lower else None
    if value < lower and row.lower != LOWEST:
        return Breach(place, value, lower)
    return Breach(place, value, upper) if value > upper and row.upper != HIGHEST else None


def _sum(row: Row, one: int, other: int) -> int:
    return held(held(one) + held(other)) if row.saturates else one + other


def _by_row(row: Row, numbers: Numbers | None, line: int, bit: int) -> int:
    return _step(row, numbers, line) if numbers is not None and row.steps & bit else _at(numbers, line)


def _step(row: Row, offsets: Numbers, place: int) -> int:
    step = int(offsets[place + 1]) - int(offsets[place])
    return held(step) if row.saturates else step


def _at(numbers: Numbers | None, place: int) -> int:
    if numbers is None:
        return 0
    return int(numbers[0 if len(numbers) == 1 else place])


def _is_padding(entry: int, padding: int | str | None) -> bool:
    return entry < 0 if padding == "negative" else padding is not None and entry == padding


def _is_active(row: Row, place: int) -> bool:
    if row.active is None:
        return True
    active: Any = row.active
    if row.mode == SPAN:
        return bool(len(active)) and active[0] <= place < active[-1]
    if row.mode == LIVE:
        return _at(active, place // max(math.prod(row.shape[1:]), 1)) >= 0
    line, column = divmod(place, max(row.shape[-1], 1)) if row.shape else (0, place)
    length = _sum(row, _sum(row, _at(active, line), row.longer), _by_row(row, row.longer_of, line, LENGTH_STEPS))
    return column * (factor(row.per, row.shape[-1]) if row.saturates else row.per) < length
