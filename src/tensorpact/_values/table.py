"""Checks as words that the checker kernel reads: the same words for every call of a signature.

===== ====================================================================================
words meaning
===== ====================================================================================
0     kind of check
1–3   tensor and width of the numbers; the place behind the last one that is looked at
4     size of the second axis, 0 where there is none
5,6,9 tensor, width and stride of what is added to a length by row
7, 8  strides of the first and the second axis, in elements
10    bits that say which of 16, 19 and 5 are offsets, whose steps count
11,12 smallest and largest number; the divisor; the bits that say "not finite"
13    what is added to every length; the length itself where it is one number for all rows
14    number of programs that share the check
15    bits that say which of the two the bound of a row is added to
16–18 tensor, width and stride of bounds by row, or of the other vector of ``same_empty``
19–21 the same for what is added by row
22–24 the same for what says which entries count: offsets, lengths, numbers of rows
25,26 which of them it is; units of a length in one column
27,28 what marks padding, and the number that does
29    what is added to every entry
31    the first place that is looked at
===== ====================================================================================

The remaining words are zero. A tensor is its place, from 1, among those that a launch hands over; 0 is none.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .rows import ALL, COLUMNS, DISTINCT, FINITE, LIVE, SPAN, Numbers, Row
from .saturating import LOWEST, factor, held, held_exactly

WORDS = 32
#: Most checks of a table, and most tensors.
MOST_ROWS, MOST_TENSORS = 32, 16
_WIDTHS = {torch.int32: 0, torch.int64: 1, torch.int16: 2, torch.int8: 3, torch.uint8: 4, torch.bool: 4}
_FLOAT_WIDTHS = {1: 4, 2: 2, 4: 0, 8: 1}
#: The exponent bits of each format; all of them set is infinity or NaN.
_EXPONENTS = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F800000,
    torch.float64: 0x7FF0000000000000,
    torch.float8_e5m2: 0x7C,
    torch.float8_e4m3fn: 0x7F,
}
#: Entries of one program in the search for a repeat.
_PAIRS = 16
BLOCK = 256
_MOST_PARTS = 256
#: A repeat is looked for among so many entries at most: the effort grows with their square.
MOST_DISTINCT = 4096
_PADDING_NEGATIVE, _PADDING_EXACT = 1, 2
_BELOW, _ABOVE = 1, 2
#: Words for tensor, width and stride of numbers by row.
_LONGER, _BOUND, _PLUS, _ACTIVE = (5, 6, 9), (16, 17, 18), (19, 20, 21), (22, 23, 24)


class Unsuitable(Exception):
    """A check that the kernel cannot make, with the reason."""


@dataclass(frozen=True, slots=True)
class Table:
    """The checks of one call as words.

    Attributes:
        words: Words of all checks, 32 for each.
        tensors: What a launch hands over beside them.
        programs: Programs of all checks together.
        parts: Most programs of one check.
    """

    words: bytes
    tensors: tuple[Tensor, ...]
    programs: int
    parts: int

    @property
    def count(self) -> int:
        """Number of checks."""
        return len(self.words) // (8 * WORDS)


def why_not(row: Row) -> str:
    """Why the kernel cannot make a check; empty where it can."""
    try:
        _encoded(row, [])
    except Unsuitable as reason:
        return str(reason)
    return ""


def encode(rows: Sequence[Row]) -> list[Table]:
    """The words of some checks on one device: one table, or more where they do not fit into one.

    Args:
        rows: The checks.

    Raises:
        Unsuitable: One of them is not for the kernel.
    """
    tables: list[Table] = []
    words = array("q")
    tensors: list[Tensor] = []
    for row in rows:
        known = len(tensors)
        line = _encoded(row, tensors)
        if len(words) == MOST_ROWS * WORDS or len(tensors) > MOST_TENSORS:
            tables.append(_table(words, tensors[:known]))
            words, tensors = array("q"), []
            line = _encoded(row, tensors)
        words.extend(line)
    return [*tables, _table(words, tensors)]


def _table(words: "array[int]", tensors: list[Tensor]) -> Table:
    parts = words[14::WORDS]
    return Table(words.tobytes(), tuple(tensors), sum(parts), max(parts))


def _place(tensors: list[Tensor], tensor: Tensor) -> int:
    for place, known in enumerate(tensors, 1):
        if known is tensor:
            return place
    tensors.append(tensor)
    return len(tensors)


def _encoded(row: Row, tensors: list[Tensor]) -> list[int]:
    words = [0] * WORDS
    numbers = _tensor(row.numbers)
    words[0] = row.kind
    words[1] = _place(tensors, numbers)
    words[2] = _width(numbers, row.kind == FINITE)
    words[31], words[3] = row.span()
    words[4], words[7], words[8] = _axes(numbers, keep_first=_by_row(row))
    words[11], words[12] = held(row.lower), held(row.upper)
    if row.kind == FINITE:
        words[11], words[12] = LOWEST, _EXPONENTS[numbers.dtype]
    elif row.kind == DISTINCT and row.span()[1] > MOST_DISTINCT:
        raise Unsuitable(f"more than {MOST_DISTINCT} entries that must differ")
    bounds = [(_BELOW, row.lower_of), (_ABOVE, row.upper_of), (0, row.other)]
    given = [(side, part) for side, part in bounds if part is not None]
    if len(given) == 2 and given[0][1] is given[1][1]:
        given = [(_BELOW | _ABOVE, given[0][1])]
    if len(given) > 1:
        raise Unsuitable("two bounds that differ by row")
    for side, part in given:
        words[15] = side
        _reference(words, tensors, _BOUND, part, numbers)
    if row.plus_of is not None:
        _reference(words, tensors, _PLUS, row.plus_of, numbers)
    words[10] = row.steps
    if row.mode == COLUMNS and row.active is not None:
        words[13] = held(row.longer)
        if row.longer_of is not None:
            _reference(words, tensors, _LONGER, row.longer_of, numbers)
    if row.mode == COLUMNS and not isinstance(row.active, Tensor) and row.active is not None and len(row.active) == 1:
        words[25], words[26] = row.mode, factor(row.per, numbers.shape[-1])
        words[13] = held(words[13] + held(row.active[0]))
    elif row.mode == SPAN and row.active is not None and not len(row.active):
        # No offsets, no entry that counts; and nothing at the address of an empty tensor.
        words[3] = words[31]
    elif row.mode != ALL and row.active is not None:
        active = _reference(words, tensors, _ACTIVE, row.active, numbers)
        words[25] = row.mode
        words[26] = factor(row.per, numbers.shape[-1]) if row.mode == COLUMNS else 0
        if row.mode == SPAN:
            # The kernel reads the first offset and the one behind a whole step.
            words[24] = active.stride(0) * (active.numel() - 1)
    if row.padding == "negative" or (isinstance(row.padding, int) and held_exactly(row.padding)):
        words[27] = _PADDING_NEGATIVE if row.padding == "negative" else _PADDING_EXACT
        words[28] = row.padding if isinstance(row.padding, int) else 0
    words[29] = held(row.plus)
    work = (words[3] - words[31]) // (_PAIRS if row.kind == DISTINCT else BLOCK)
    words[14] = max(1, min(work + 1, _MOST_PARTS))
    return words


def _by_row(row: Row) -> bool:
    return row.mode in (COLUMNS, LIVE) or any(part is not None for part in (row.lower_of, row.upper_of, row.plus_of))


def _tensor(numbers: Numbers) -> Tensor:
    if not isinstance(numbers, Tensor):
        raise Unsuitable("numbers on the host beside numbers on a device")
    return numbers


def _width(tensor: Tensor, floats: bool = False) -> int:
    if floats:
        if tensor.dtype not in _EXPONENTS:
            raise Unsuitable(f"floats of {tensor.dtype}")
        return _FLOAT_WIDTHS[tensor.element_size()]
    if tensor.dtype not in _WIDTHS:
        raise Unsuitable(f"numbers of {tensor.dtype}")
    return _WIDTHS[tensor.dtype]


def _axes(tensor: Tensor, keep_first: bool) -> tuple[int, int, int]:
    """Size of the second axis and strides of two axes, after axes that lie one behind the other are taken as one."""
    axes: list[tuple[int, int]] = []
    for place, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size == 1 and not (keep_first and place == 0):
            continue
        if axes and axes[-1][1] == size * stride and not (keep_first and place == 1):
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    if len(axes) > 2:
        # Reasons are counted by their text, which says nothing that changes from call to call.
        raise Unsuitable("a tensor that takes more than two strides to walk through")
    if len(axes) == 2:
        return axes[1][0], axes[0][1], axes[1][1]
    return 0, axes[0][1] if axes else 1, 0


def _reference(
    words: list[int],
    tensors: list[Tensor],
    at: tuple[int, int, int],
    numbers: Numbers,
    beside: Tensor,
) -> Tensor:
    tensor = _tensor(numbers)
    if tensor.device != beside.device:
        raise Unsuitable("tensors on several devices")
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.ndim > 1:
        raise Unsuitable(f"bounds or offsets of {tensor.dtype} with {tensor.ndim} axes")
    place, width, stride = at
    words[place] = _place(tensors, tensor)
    words[width] = _WIDTHS[tensor.dtype]
    # One entry holds for every row.
    words[stride] = tensor.stride(0) if tensor.ndim and tensor.numel() > 1 else 0
    return tensor
