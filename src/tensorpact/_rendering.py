"""The table under a message: arguments against dims, with both sides of the conflict marked."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ._errors import ArgumentInfo, Binding, ContractViolation, DocumentedError

WIDTH = 100
Axes = tuple[tuple[str, int, str], ...]
#: A call with more tensors shows those that matter to the conflict, and counts the rest.
_ROWS, _FAILING = 8, 4
_ITEM = re.compile(r"(.+?)\[.*")
_BY_DTYPE, _BY_DEVICE = ("dtype", "same_dtype"), ("device", "same_device")
_BY_STRIDES = ("layout", "written", "no_overlap")


@dataclass(frozen=True, slots=True)
class Conflict:
    """What disagrees in a failed call; plain texts and numbers, so that it goes wherever the error goes.

    Attributes:
        names: Arguments at fault.
        reason: Why, as the default text has it.
        point: Kind of the obligation, or verb of the clause.
        faulty: Argument axes at fault.
        held: Argument axes that they are held against.
        against: The argument that bound the failing axis, or that the others are compared with.
        suggestion: The smallest change that would satisfy the contract; empty where none is known.
    """

    names: tuple[str, ...]
    reason: str
    point: str
    faulty: tuple[tuple[str, int], ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    against: str = ""
    suggestion: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One argument: ``>`` where it is at fault, ``=`` where it is what the other one is held against."""

    mark: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Arguments against dims.

    Attributes:
        header: Column titles; the first column holds the names.
        rows: Arguments in signature order.
        omitted: What is left out, in words; empty where nothing is.
        dims: Titles of the columns that are dims.
    """

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    omitted: str
    dims: tuple[str, ...]

    def text(self) -> list[str]:
        """The table as lines of plain text."""
        widths = self._widths()
        lines = [_line("  ", self.header, widths)]
        lines += [_line(f"{row.mark} ", row.cells, widths) for row in self.rows]
        return [*lines, f"  {self.omitted}"] if self.omitted else lines

    def _widths(self) -> list[int]:
        return [max(map(len, column)) for column in zip(self.header, *(r.cells for r in self.rows), strict=True)]

    @property
    def width(self) -> int:
        """Columns of text that it takes."""
        return sum(self._widths()) + 2 * len(self.header)


def _line(mark: str, cells: Iterable[str], widths: list[int]) -> str:
    return (mark + "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True))).rstrip()


class Facts(NamedTuple):
    """What a note says of an error, without the error."""

    error: DocumentedError | None
    entry_point: str
    clause: str | None
    bindings: Mapping[str, Binding]
    arguments: Mapping[str, ArgumentInfo]


def table_of(error: Facts | ContractViolation, conflict: Conflict) -> Table | None:
    """The table of a failed call; None where no argument has anything to show.

    Args:
        error: The violation, with its arguments.
        conflict: What disagrees.
    """
    infos = list(error.arguments.values())
    shown = [i for i in infos if i.shape is not None or i.name in conflict.names or i.name == conflict.against]
    kept = _kept(shown, conflict)
    if not kept:
        return None
    axes = {i.name: _axes(i.expected, i.shape) for i in kept}
    dims = _dims(axes.values())
    involved = {*conflict.names, *(n for n, _ in conflict.held), conflict.against}
    table = _build(kept, conflict, axes, dims, annotated=True)
    if table.width > WIDTH:
        dims = _dims(a for n, a in axes.items() if n in involved) or dims
        table = _build(kept, conflict, axes, dims, annotated=True)
    if table.width > WIDTH:
        table = _build(kept, conflict, axes, dims, annotated=False)
    if table.width > WIDTH:
        marked = {*conflict.faulty, *conflict.held}
        dims = [d for d in dims if any(d == a[0] and (n, a[1]) in marked for n, axis in axes.items() for a in axis)]
        table = _build(kept, conflict, axes, dims, annotated=False)
    omitted = _omitted(shown, kept)
    return Table(table.header, table.rows, omitted, table.dims)


def _kept(infos: list[ArgumentInfo], conflict: Conflict) -> list[ArgumentInfo]:
    first = {*conflict.names[:_FAILING], conflict.against, *(n for n, _ in (*conflict.faulty, *conflict.held))}
    alone = [i for i in infos if i.name in first or not _ITEM.fullmatch(i.name)]
    if len(alone) <= _ROWS:
        return alone
    labels = {
        label for i in alone for label, place, _ in _axes(i.expected, i.shape) if (i.name, place) in conflict.faulty
    }
    kept = [i for i in alone if i.name in first]
    related = [i for i in alone if i.name not in first and any(a[0] in labels for a in _axes(i.expected, i.shape))]
    names = {i.name for i in (*kept, *related[: max(_ROWS - len(kept), 0)])}
    return [i for i in alone if i.name in names]


def _omitted(infos: list[ArgumentInfo], kept: list[ArgumentInfo]) -> str:
    names = {i.name for i in kept}
    items: dict[str, int] = {}
    others: list[str] = []
    for info in infos:
        if info.name in names:
            continue
        item = _ITEM.fullmatch(info.name)
        if item is None:
            others.append(info.name)
        else:
            items[item.group(1)] = items.get(item.group(1), 0) + 1
    parts = [f"{count} more item{'s' * (count > 1)} of {owner}" for owner, count in items.items()]
    if others:
        named = ": " + ", ".join(others) if sum(len(n) + 2 for n in others) <= 60 else ""
        parts.append(f"{len(others)} more tensor{'s' * (len(others) > 1)}{named}")
    return f"({' and '.join(parts)})" if parts else ""


@functools.lru_cache(maxsize=512)
def _axes(expected: str, shape: tuple[int, ...] | None) -> Axes:
    """Label, place and size of each axis; none where the number of axes is wrong."""
    if shape is None:
        return ()
    rank = len(shape)
    for form in expected.split(" or "):
        labels = [t.lstrip("#") for t in form[1:-1].split(", ")] if len(form) > 2 else []
        spread = next((i for i, t in enumerate(labels) if t == "..." or t.startswith("*")), None)
        if spread is None and len(labels) == rank:
            return tuple((t, i, str(n)) for i, (t, n) in enumerate(zip(labels, shape, strict=True)))
        if spread is not None and rank >= len(labels) - 1:
            tail = rank - (len(labels) - 1 - spread)
            found = [(t, i, str(shape[i])) for i, t in enumerate(labels[:spread])]
            found.append((labels[spread], spread, ",".join(map(str, shape[spread:tail])) or "-"))
            behind = zip(labels[spread + 1 :], range(tail, rank), strict=True)
            return (*found, *((t, i, str(shape[i])) for t, i in behind))
    return ()


def _dims(axes: Iterable[Axes]) -> list[str]:
    return list(dict.fromkeys(label for found in axes for label, _, _ in found))


def _build(
    infos: list[ArgumentInfo],
    conflict: Conflict,
    axes: dict[str, Axes],
    dims: list[str],
    annotated: bool,
) -> Table:
    arrays = [i for i in infos if i.shape is not None]
    header = ["", *(f" {d}" for d in dims)]
    dtype = conflict.point in _BY_DTYPE or len({i.dtype for i in arrays}) > 1
    device = conflict.point in _BY_DEVICE or len({i.device for i in arrays}) > 1
    strides = conflict.point in _BY_STRIDES
    unlike = any(not axes[i.name] and (i.shape != () or i.name in conflict.names) for i in infos)
    last = annotated or unlike
    for title, wanted in ((" dtype", dtype), (" device", device), (" strides", strides), (" annotated", last)):
        if wanted:
            header.append(title)
    rows: list[Row] = []
    for info in infos:
        mark = ">" if info.name in conflict.names else "=" if _holds(info, conflict) else " "
        cells = [info.name, *_sizes(info, conflict, axes[info.name], dims)]
        if dtype:
            cells.append(_marked((info.dtype or "").removeprefix("torch."), mark, conflict.point in _BY_DTYPE))
        if device:
            cells.append(_marked(info.device or "", mark, conflict.point in _BY_DEVICE))
        if strides:
            # A position is worth showing only where it is the point.
            shown = str(list(info.strides)) if info.strides is not None and mark != " " else ""
            cells.append(_marked(shown, mark, True))
        if last:
            cells.append(_last(info, axes[info.name], mark, conflict))
        rows.append(Row(mark, tuple(cells)))
    return Table(tuple(header), tuple(rows), "", tuple(header[1 : 1 + len(dims)]))


def _holds(info: ArgumentInfo, conflict: Conflict) -> bool:
    return info.name == conflict.against or any(info.name == name for name, _ in conflict.held)


def _sizes(info: ArgumentInfo, conflict: Conflict, axes: Axes, dims: list[str]) -> Iterable[str]:
    found: dict[str, list[str]] = {}
    marks: dict[str, str] = {}
    for label, place, size in axes:
        found.setdefault(label, []).append(size)
        if (info.name, place) in conflict.faulty:
            marks[label] = ">"
        elif (info.name, place) in conflict.held:
            marks.setdefault(label, "=")
    for dim in dims:
        yield _marked(",".join(found[dim]), marks.get(dim, " "), True) if dim in found else ""


def _last(info: ArgumentInfo, axes: Axes, mark: str, conflict: Conflict) -> str:
    if axes or (info.shape == () and not info.expected[2:]):
        # What has no strides is no plain torch tensor: its own description says what it is.
        return f" {info.expected}" if info.strides is not None else f" {info.expected}, is {info.description}"
    got = str(list(info.shape)) if info.shape is not None else info.description.strip("<>")
    wrong = mark == ">" and conflict.point in ("rank", "type", "shape", "axes", "present", "needs", "together")
    return f"{_marked(got, mark, wrong)}" + (f" for {info.expected}" if info.expected else "")


def _marked(text: str, mark: str, point: bool) -> str:
    if not text:
        return ""
    if not point or mark == " ":
        return f" {text} "
    return f">{text}<" if mark == ">" else f"={text}="
