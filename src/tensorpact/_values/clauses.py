"""What a contract says of the numbers inside a tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from tensorpact._clause import Clause, Rule, lambda_parameters, named
from tensorpact._errors import ContractDefinitionError, DocumentedError


@dataclass(frozen=True, slots=True)
class Steps:
    """How far each of some offsets is from the next one: the rows of each sequence.

    Attributes:
        offsets: Integer tensor with one entry more than there are sequences.
    """

    offsets: str

    def __str__(self) -> str:
        return f"steps({self.offsets!r})"


#: A number, the name of a dim, let, int argument or integer tensor, steps of offsets, or a function of dims and int
#: arguments.
Bound = int | str | Steps | Rule
#: One number that marks padding, or every negative one.
Padding = int | Literal["negative"]

#: Checks that look along one axis, so that the tensor has no other.
ALONG = frozenset({"starts_at", "ends_at", "nondecreasing", "distinct", "same_empty", "steps_at_most"})
#: Checks that compare a number with bounds, so that something may be added to it.
SUMS = frozenset({"at_least", "at_most", "less_than", "within", "steps_at_most"})


def bound_text(bound: Bound) -> str:
    """A bound as its author wrote it; a function by what it reads."""
    if isinstance(bound, int | str):
        return repr(bound)
    if isinstance(bound, Steps):
        return str(bound)
    return f"rule({', '.join(lambda_parameters(bound))})"


def plus_text(plus: tuple[Bound, ...]) -> str:
    """What is added as its author wrote it."""
    texts = [bound_text(p) for p in plus]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


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
        plus: What is added to the length.
    """

    lengths: str
    per: Bound = 1
    plus: tuple[Bound, ...] = ()

    def __str__(self) -> str:
        parts = [f"per={bound_text(self.per)}"] if self.per != 1 else []
        parts += [f"plus={plus_text(self.plus)}"] if self.plus else []
        return f"upto({', '.join([repr(self.lengths), *parts])})"


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
        plus: What is added to an entry before it is compared; what is None adds nothing.
        reads: Device types that are read at once, as the CPU is, since the code behind waits for them in any case.
    """

    checks: tuple[Check, ...] = ()
    active: Active | None = None
    padding: Padding | None = None
    plus: tuple[Bound, ...] = ()
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
            if not isinstance(bound, int | str | Steps):
                yield bound

    def bounds(self) -> Iterator[Bound]:
        """Everything that an entry is compared with or limited by, or that is added to it."""
        for check in self.checks:
            yield from check.bounds
        if isinstance(self.active, Upto):
            yield self.active.per
        yield from self.added()

    def added(self) -> tuple[Bound, ...]:
        """What is added to entries or lengths; a part that has no value adds nothing."""
        return (*self.plus, *(self.active.plus if isinstance(self.active, Upto) else ()))

    def offsets(self) -> tuple[str, ...]:
        """Names of the offsets whose steps the clause reads."""
        return tuple(dict.fromkeys(b.offsets for b in self.bounds() if isinstance(b, Steps)))

    def others(self) -> tuple[str, ...]:
        """Names that the clause reads beside its own, in order."""
        read = [b for b in self.bounds() if isinstance(b, str)]
        return tuple(dict.fromkeys(n for n in (*read, self.decides, *self.offsets()) if n is not None))

    def __str__(self) -> str:
        parts = [*(repr(n) for n in self.names), *map(str, self.checks)]
        if self.active is not None:
            parts.append(f"active={repr(self.active) if isinstance(self.active, str) else self.active}")
        parts += [f"padding={self.padding!r}"] if self.padding is not None else []
        parts += [f"plus={plus_text(self.plus)}"] if self.plus else []
        return f"values({', '.join(parts)})"


def values(
    *parts: str | Check,
    error: DocumentedError | None = None,
    when: Rule | None = None,
    active: Active | None = None,
    padding: Padding | None = None,
    plus: Bound | tuple[Bound, ...] = (),
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
        plus: What is added to each entry before it is compared: a bound, or one fixed and one for each row.
        reads: Device types that are read like the CPU.
    """
    names = tuple(p for p in parts if isinstance(p, str))
    checks = tuple(p for p in parts if isinstance(p, Check))
    if names + checks != parts or not checks:
        raise ContractDefinitionError("values takes parameter names and then at least one check")
    clause = Values(named("values", names), error, when, checks, active, padding, _added(plus), reads)
    _check_parts(clause)
    return clause


def _check_parts(clause: Values) -> None:
    kinds = [c.kind for c in clause.checks]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ContractDefinitionError(f"{clause}: {kind} stands twice")
    if "same_empty" in kinds and (len(clause.names) != 2 or len(kinds) > 1):
        raise ContractDefinitionError(f"{clause}: same_empty compares two tensors, and stands alone")
    if "finite" in kinds and (len(kinds) > 1 or clause.plus or clause.padding is not None):
        raise ContractDefinitionError(f"{clause}: finite stands alone, and takes neither plus nor padding")
    if clause.plus and not set(kinds) <= SUMS:
        raise ContractDefinitionError(f"{clause}: plus belongs to {', '.join(sorted(SUMS))}")
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
    if isinstance(given, bool) or not (isinstance(given, int | str | Steps) or callable(given)):
        raise ContractDefinitionError(f"{verb} takes a number, a name or a function, not {bound!r}")
    return bound


def _added(plus: Bound | tuple[Bound, ...]) -> tuple[Bound, ...]:
    parts = cast("tuple[Bound, ...]", plus if isinstance(plus, tuple) else (plus,))
    return tuple(_bound("plus", part) for part in parts)


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


def steps_at_most(most: Bound) -> Check:
    """No offset is further than this from the next one: no sequence has more rows."""
    return Check("steps_at_most", None, _bound("steps_at_most", most))


def multiple_of(unit: Bound) -> Check:
    """Every entry is a multiple of this number."""
    return Check("multiple_of", _bound("multiple_of", unit))


def finite() -> Check:
    """No entry is infinite or NaN."""
    return Check("finite")


def same_empty() -> Check:
    """Two vectors of offsets say of the same sequences that they are empty."""
    return Check("same_empty")


def upto(lengths: str, per: Bound = 1, plus: Bound | tuple[Bound, ...] = ()) -> Upto:
    """The columns of each row that hold something: the first ``ceil((length + plus) / per)`` ones.

    Args:
        lengths: Integer tensor with a length for each row.
        per: Units in one column.
        plus: What is added to each length: a bound, or one fixed and one for each row.
    """
    return Upto(lengths, _bound("upto", per), _added(plus))


def steps(offsets: str) -> Steps:
    """The rows of each sequence as a bound, or as what is added: how far its offset is from the next one.

    Args:
        offsets: Integer tensor with one entry more than there are sequences.
    """
    return Steps(offsets)


def live(rows: str) -> Live:
    """The rows that are no padding: those for which another tensor holds 0 or more.

    Args:
        rows: Integer tensor with a number for each row, such as a slot.
    """
    return Live(rows)
