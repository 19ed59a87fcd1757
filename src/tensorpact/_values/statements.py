"""A clause on values laid on one call: its checks as rows, and the words for the one that does not hold."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from tensorpact._clause import Rule, lambda_parameters

from .clauses import Bound, Check, Live, Steps, Upto, Values, bound_text
from .rows import (
    ALL,
    BOUND_STEPS,
    COLUMNS,
    KINDS,
    LENGTH_STEPS,
    LIVE,
    PLUS_STEPS,
    RANGE,
    SPAN,
    Breach,
    Numbers,
    Row,
    place_text,
)

#: Parameter, dim or let to what it is in this call; None for an absent argument and an unbound dim.
Scope = Mapping[str, Any]
Run = Callable[[Rule], Any]


class Absent(Exception):
    """A check does not apply: an argument is None, a dim is unbound because of one, or rows do not belong together."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One check of one parameter in one call.

    Attributes:
        clause: Where it stands.
        name: The parameter.
        check: What holds.
        row: The same with numbers in the place of names.
    """

    clause: Values
    name: str
    check: Check
    row: Row


@dataclass(frozen=True, slots=True)
class Found:
    """A number that breaks a check, in words.

    Attributes:
        position: Its index along each axis; empty for an argument that is a number.
        value: The number.
        expected: What it should be.
        limit: The bound as the contract has it.
        added: What was added to the entry, as the contract has it, or empty.
    """

    position: str
    value: int | float
    expected: str
    limit: int
    added: str = ""

    def fields(self, check: Check) -> dict[str, Any]:
        """What a message template may read."""
        fields = {"position": self.position, "value": self.value, "expected": self.expected, "limit": self.limit}
        return fields | ({"last": self.value} if check.kind == "ends_at" else {})


#: Names that a message of a clause on values may read beside arguments, dims and lets.
FIELDS = frozenset({"position", "value", "expected", "limit"})


def lower(clause: Values, scope: Scope, run: Run) -> Iterator[Statement]:
    """The checks of a clause in the order in which they are looked at; those that do not apply are left out.

    Args:
        clause: The clause.
        scope: What the names are in this call.
        run: Calls a rule with what its parameters name; raises Absent where one is unbound.
    """
    if clause.checks[0].kind == "same_empty":
        one, other = (numbers_of(name, scope) for name in clause.names)
        if one is not None and other is not None:
            row = Row(KINDS["same_empty"], one, other=other)
            if row.fits():
                yield Statement(clause, clause.names[0], clause.checks[0], row)
        return
    for name in clause.names:
        numbers = numbers_of(name, scope)
        if numbers is None:
            continue
        for check in clause.checks:
            try:
                yield Statement(clause, name, check, _row(clause, check, numbers, scope, run))
            except Absent:
                continue


def numbers_of(name: str, scope: Scope) -> Numbers | None:
    """The numbers behind a name: its copy on the host where there is one; None where the argument is."""
    value = scope[name]
    host = scope.get(f"{name}_host")
    if value is None:
        return None
    if host is not None:
        # Entries may be NumPy's, which compute in their own width.
        return [int(entry) for entry in host]
    return value if isinstance(value, Tensor) else [int(value)]


def _row(clause: Values, check: Check, numbers: Numbers, scope: Scope, run: Run) -> Row:
    row = Row(KINDS.get(check.kind, RANGE), numbers, padding=clause.padding)
    if check.lower is not None:
        row.lower, row.lower_of = _bound(check.lower, scope, run)
    if check.upper is not None:
        row.upper, row.upper_of = _bound(check.upper, scope, run)
        row.upper -= check.kind in ("less_than", "within")
    if any(isinstance(bound, Steps) for bound in check.bounds):
        row.steps |= BOUND_STEPS
    if check.kind in ("starts_at", "ends_at"):
        row.upper, row.upper_of = row.lower, row.lower_of
        row.first, row.last, row.padding = check.kind == "starts_at", check.kind == "ends_at", None
    elif check.kind in ("nondecreasing", "finite", "steps_at_most"):
        row.padding = None
    row.plus, row.plus_of, by_steps = _sum(clause.plus, scope, run)
    row.steps |= PLUS_STEPS if by_steps else 0
    if clause.decides is not None:
        row.active = numbers_of(clause.decides, scope)
        row.mode = COLUMNS if isinstance(clause.active, Upto) else LIVE if isinstance(clause.active, Live) else SPAN
        if isinstance(clause.active, Upto):
            row.per, _ = _bound(clause.active.per, scope, run)
            row.longer, row.longer_of, by_steps = _sum(clause.active.plus, scope, run)
            row.steps |= LENGTH_STEPS if by_steps else 0
        if row.active is None:
            row.mode = ALL
    if not row.fits():
        raise Absent
    return row


def _sum(parts: tuple[Bound, ...], scope: Scope, run: Run) -> tuple[int, Numbers | None, bool]:
    """What is added: a number, numbers by row, and whether these are the steps of what is given."""
    fixed, of, by_steps = 0, None, False
    for part in parts:
        try:
            number, numbers = _bound(part, scope, run)
        except Absent:
            continue
        fixed += number
        if numbers is not None:
            of, by_steps = numbers, isinstance(part, Steps)
    return fixed, of, by_steps


def _is_given(part: Bound, scope: Scope) -> bool:
    name = part.offsets if isinstance(part, Steps) else part
    return not isinstance(name, str) or scope[name] is not None


def _bound(bound: Bound, scope: Scope, run: Run) -> tuple[int, Numbers | None]:
    if isinstance(bound, int):
        return bound, None
    if isinstance(bound, Steps):
        offsets = numbers_of(bound.offsets, scope)
        if offsets is None:
            raise Absent
        return 0, offsets
    value = numbers_of(bound, scope) if isinstance(bound, str) else run(bound)
    if value is None:
        raise Absent
    if isinstance(value, Tensor):
        return 0, value
    if isinstance(value, Sequence):
        entries = cast("Sequence[int]", value)
        return (entries[0], None) if len(entries) == 1 else (0, entries)
    return int(value), None


def runner(scope: Scope, dims: Collection[str] = ()) -> Run:
    """Calls rules with what a scope holds.

    Args:
        scope: What the names are.
        dims: Those that are no arguments, so that None says that they have no value.
    """

    def run(rule: Rule) -> Any:
        names = lambda_parameters(rule)
        if any(n not in scope or (n in dims and scope[n] is None) for n in names):
            raise Absent
        return rule(*[scope[n] for n in names])

    return run


def is_at_hand(row: Row, reads: tuple[str, ...]) -> bool:
    """Whether all numbers of a row can be read without waiting."""
    return all(not isinstance(p, Tensor) or p.is_cpu or p.device.type in reads for p in row.parts())


def has_data(row: Row, wrapped: bool = False) -> bool:
    """Whether there are numbers at all: none in a meta tensor, nor while something traces.

    Args:
        row: The check.
        wrapped: Whether a tensor may be another's business, which raises where it has no numbers to hand out.
    """
    depth: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)  # pyright: ignore[reportPrivateUsage]
    if torch.compiler.is_compiling() or depth():
        return False
    return not any(isinstance(p, Tensor) and (p.is_meta or (not wrapped and _is_hollow(p))) for p in row.parts())


def _is_hollow(tensor: Any) -> bool:
    """Whether operations on a tensor are another's business, as on a fake one."""
    plain: Any = Tensor
    return type(tensor).__torch_dispatch__ is not plain.__torch_dispatch__


def in_words(statement: Statement, breach: Breach, scope: Scope) -> Found:
    """What a breach says.

    Args:
        statement: What does not hold.
        breach: Where it does not.
        scope: What the names are in the call; tensors need no data.
    """
    value, check = scope[statement.name], statement.check
    shape = tuple(value.shape) if isinstance(value, Tensor) else ()
    position = place_text(breach.position, shape) if isinstance(value, Tensor) else ""
    limit = breach.limit
    upper = check.kind == "less_than" or (check.kind == "within" and breach.value > limit)
    limit += upper
    parts = [p for p in statement.clause.plus if _is_given(p, scope)]
    added = " + ".join(p if isinstance(p, str) else bound_text(p) for p in parts)
    return Found(position, breach.value, _expected(statement, breach, scope, limit), limit, added)


def _expected(statement: Statement, breach: Breach, scope: Scope, limit: int) -> str:
    check, shape = statement.check, getattr(scope[statement.name], "shape", (1,))
    inner = 1
    for size in shape[1:]:
        inner *= size
    first = breach.position // max(inner, 1)

    def said(bound: Bound | None, number: int) -> str:
        if isinstance(bound, Steps):
            return f"the {number} rows of sequence {first} in {bound.offsets}"
        if not isinstance(bound, str):
            return str(number)
        given = scope[bound]
        if isinstance(given, Tensor) and given.numel() != 1:
            return f"{bound}[{first}] = {number}"
        return f"{bound} = {number}"

    kind = check.kind
    if kind == "within":
        if breach.value < limit:
            return f"at least {said(check.lower, limit)}"
        return f"below {said(check.upper, limit)}"
    bound = check.lower if check.lower is not None else check.upper
    words = {
        "starts_at": f"{said(bound, limit)} at the start",
        "ends_at": f"{said(bound, limit)} at the end",
        "at_least": f"at least {said(bound, limit)}",
        "at_most": f"at most {said(bound, limit)}",
        "steps_at_most": f"at most {said(bound, limit)}",
        "less_than": f"below {said(bound, limit)}",
        "multiple_of": f"a multiple of {said(bound, limit)}",
        "nondecreasing": f"at least the entry before it, {limit}",
        "distinct": "no number twice",
        "finite": "a finite number",
    }
    return words.get(kind, f"an empty sequence on both sides or on neither, but the other has {limit} rows")


def default_text(statement: Statement, found: Found) -> str:
    """The default text of a breach."""
    name = f"{statement.name}[{found.position}]" if found.position else statement.name
    if statement.check.kind == "same_empty":
        name, other = statement.clause.names
        return (
            f"sequence {found.position} has {found.value} rows in {name} and {found.limit} in {other}: "
            "empty on one side only"
        )
    added = f" + {found.added}" if found.added else ""
    if statement.check.kind == "steps_at_most":
        return f"sequence {found.position} has {found.value} rows in {statement.name}{added}, expected {found.expected}"
    return f"{name}{added} is {found.value}, expected {found.expected}"
