"""What a contract says of the numbers inside a tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tensorpact._clause import Clause, Rule, lambda_parameters, named
from tensorpact._errors import ContractDefinitionError, DocumentedError

#: A number, the name of a dim, let, int argument or integer tensor, or a function of dims and int arguments.
Bound = int | str | Rule
#: One number that marks padding, or every negative one.
Padding = int | Literal["negative"]

#: Checks that look along one axis, so that the tensor has no other.
ALONG = frozenset({"starts_at", "ends_at", "nondecreasing", "distinct", "same_empty"})


def bound_text(bound: Bound) -> str:
    """A bound as its author wrote it; a function by what it reads."""
    if isinstance(bound, int | str):
        return repr(bound)
    return f"rule({', '.join(lambda_parameters(bound))})"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that holds for the numbers of a tensor.

    Attributes:
        kind: Name of the function that makes it.
        lower: Bound from below, or the number itself, or None.
        upper: Bound from above, or None.
    """

    kind: str
    lower: Bound | None = None
    upper: Bound | None = None

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds that are given."""
        return tuple(b for b in (self.lower, self.upper) if b is not None)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(bound_text, self.bounds))})"


@dataclass(frozen=True, slots=True)
class Upto:
    """Which columns of a row count: those below a length that another tensor holds for the row.

    Attributes:
        lengths: Integer tensor or argument with one length for each row.
        per: Units in one column: a page of 4 positions makes one column of four.
    """

    lengths: str
    per: Bound = 1

    def __str__(self) -> str:
        return f"upto({self.lengths!r}" + (f", per={bound_text(self.per)})" if self.per != 1 else ")")


@dataclass(frozen=True, slots=True)
class Live:
    """Which rows count: those for which another tensor holds no negative number.

    Attributes:
        rows: Integer tensor with a number for each row.
    """

    rows: str

    def __str__(self) -> str:
        return f"live({self.rows!r})"


#: Which entries count: those between two offsets, some columns of each row, some rows.
Active = str | Upto | Live


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Values(Clause):
    """Adds: what the numbers in these tensors are.

    Attributes:
        checks: What holds, in the order in which it is looked at.
        active: Which entries count: those between the first and the last entry of the named offsets, some columns of
            each row, or some rows; all of them where it is None.
        padding: Entries that are no numbers to look at.
        plus: What is added to an entry before it is compared: a dim, an int argument or an integer tensor.
        reads: Device types that are read at once, as the CPU is, since the code behind waits for them in any case.
    """

    checks: tuple[Check, ...] = ()
    active: Active | None = None
    padding: Padding | None = None
    plus: str | None = None
    reads: tuple[str, ...] = ()

    @property
    def decides(self) -> str | None:
        """The parameter that says which entries count."""
        if isinstance(self.active, Upto):
            return self.active.lengths
        return self.active.rows if isinstance(self.active, Live) else self.active

    def rules(self) -> Iterator[Rule]:
        """Functions among the bounds."""
        for bound in self.bounds():
            if not isinstance(bound, int | str):
                yield bound

    def bounds(self) -> Iterator[Bound]:
        """Everything that an entry is compared with or limited by."""
        for check in self.checks:
            yield from check.bounds
        if isinstance(self.active, Upto):
            yield self.active.per

    def others(self) -> tuple[str, ...]:
        """Names that the clause reads beside its own, in order."""
        read = [b for b in self.bounds() if isinstance(b, str)]
        return tuple(dict.fromkeys(n for n in (*read, self.decides, self.plus) if n is not None))

    def __str__(self) -> str:
        parts = [*(repr(n) for n in self.names), *map(str, self.checks)]
        if self.active is not None:
            parts.append(f"active={repr(self.active) if isinstance(self.active, str) else self.active}")
        parts += [
            f"{word}={given!r}" for word, given in (("padding", self.padding), ("plus", self.plus)) if given is not None
        ]
        return f"values({', '.join(parts)})"


def values(
    *parts: str | Check,
    error: DocumentedError | None = None,
    when: Rule | None = None,
    active: Active | None = None,
    padding: Padding | None = None,
    plus: str | None = None,
    reads: tuple[str, ...] = (),
) -> Clause:
    """The numbers in a tensor must be as these checks say.

    They are read from a copy on the host where there is an argument ``<name>_host``, else from a tensor in host memory,
    always; from device memory as ``tensorpact.value_checks`` says.

    Args:
        *parts: Parameter names, then checks.
        error: Raised where a check does not hold.
        when: Condition that limits the clause.
        active: Entries that count: the name of offsets, of which the first and the last say where they begin and end,
            or :func:`upto`, or :func:`live`.
        padding: Entries with this number, or ``"negative"`` ones, are padding and not looked at.
        plus: Name of what is added to each entry before it is compared.
        reads: Device types that are read like the CPU.
    """
    names = tuple(p for p in parts if isinstance(p, str))
    checks = tuple(p for p in parts if isinstance(p, Check))
    if names + checks != parts or not checks:
        raise ContractDefinitionError("values takes parameter names and then at least one check")
    clause = Values(named("values", names), error, when, checks, active, padding, plus, reads)
    _check_parts(clause)
    return clause


def _check_parts(clause: Values) -> None:
    kinds = [c.kind for c in clause.checks]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ContractDefinitionError(f"{clause}: {kind} stands twice")
    if "same_empty" in kinds and (len(clause.names) != 2 or len(kinds) > 1):
        raise ContractDefinitionError(f"{clause}: same_empty compares two tensors, and stands alone")
    if "finite" in kinds and (len(kinds) > 1 or clause.plus is not None or clause.padding is not None):
        raise ContractDefinitionError(f"{clause}: finite stands alone, and takes neither plus nor padding")
    if clause.plus is not None and not set(kinds) <= {"at_least", "at_most", "less_than", "within"}:
        raise ContractDefinitionError(f"{clause}: plus belongs to at_least, at_most, less_than and within")
    if clause.active is not None and set(kinds) & ALONG:
        raise ContractDefinitionError(f"{clause}: active does not go with {', '.join(sorted(set(kinds) & ALONG))}")
    if not (clause.padding is None or clause.padding == "negative" or type(clause.padding) is int):
        raise ContractDefinitionError(f'{clause}: padding is an int or "negative"')
    for rule in clause.rules():
        lambda_parameters(rule)
    least = [c.lower for c in clause.checks if c.kind in ("at_least", "within") and isinstance(c.lower, int)]
    most = [c.upper - (c.kind != "at_most") for c in clause.checks if isinstance(c.upper, int)]
    if least and most and max(least) > min(most):
        raise ContractDefinitionError(f"{clause}: no number is at least {max(least)} and at most {min(most)}")
    for check in clause.checks:
        if check.kind == "multiple_of" and isinstance(check.lower, int) and check.lower < 1:
            raise ContractDefinitionError(f"{clause}: a multiple is of a number above 0")


def _bound(verb: str, bound: Bound) -> Bound:
    given: object = bound
    if isinstance(given, bool) or not (isinstance(given, int | str) or callable(given)):
        raise ContractDefinitionError(f"{verb} takes a number, a name or a function, not {bound!r}")
    return bound


def starts_at(number: Bound) -> Check:
    """The first entry is this number."""
    return Check("starts_at", _bound("starts_at", number))


def ends_at(number: Bound) -> Check:
    """The last entry is this number."""
    return Check("ends_at", _bound("ends_at", number))


def at_least(least: Bound) -> Check:
    """No entry is smaller."""
    return Check("at_least", _bound("at_least", least))


def at_most(most: Bound) -> Check:
    """No entry is larger."""
    return Check("at_most", None, _bound("at_most", most))


def less_than(limit: Bound) -> Check:
    """Every entry is smaller."""
    return Check("less_than", None, _bound("less_than", limit))


def within(least: Bound, limit: Bound) -> Check:
    """Every entry is at least the first and below the second, as in ``range(least, limit)``."""
    return Check("within", _bound("within", least), _bound("within", limit))


def nondecreasing() -> Check:
    """No entry is smaller than the one before it."""
    return Check("nondecreasing")


def distinct() -> Check:
    """No two entries are equal, padding aside."""
    return Check("distinct")


def multiple_of(unit: Bound) -> Check:
    """Every entry is a multiple of this number."""
    return Check("multiple_of", _bound("multiple_of", unit))


def finite() -> Check:
    """No entry is infinite or NaN."""
    return Check("finite")


def same_empty() -> Check:
    """Two vectors of offsets say of the same sequences that they are empty."""
    return Check("same_empty")


def upto(lengths: str, per: Bound = 1) -> Upto:
    """The columns of each row that hold something: the first ``ceil(length / per)`` ones.

    Args:
        lengths: Integer tensor with a length for each row.
        per: Units in one column.
    """
    return Upto(lengths, _bound("upto", per))


def live(rows: str) -> Live:
    """The rows that are no padding: those for which another tensor holds 0 or more.

    Args:
        rows: Integer tensor with a number for each row, such as a slot.
    """
    return Live(rows)
