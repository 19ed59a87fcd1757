"""The statements of a contract, written in firing order.

A claim (``present``, ``rank``, ``dtype``, ``layout``, ``named_axes``, ``device``, ``shape``, ``same_dim``, ``any_of``)
says when an obligation of the annotations is looked at and which documented error it raises. Every other clause adds a
statement of its own; ``values`` speaks of the numbers inside a tensor. ``error=`` may be left out everywhere; the
default text is raised then.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ._clause import Clause, Rule, lambda_parameters, named
from ._errors import ContractDefinitionError, DocumentedError
from ._values.clauses import (
    Values,
    at_least,
    at_most,
    distinct,
    ends_at,
    finite,
    less_than,
    live,
    multiple_of,
    nondecreasing,
    same_empty,
    starts_at,
    steps,
    steps_at_most,
    upto,
    values,
    within,
)

__all__ = [
    "Clause",
    "any_of",
    "at_least",
    "at_most",
    "device",
    "distinct",
    "dtype",
    "ends_at",
    "exclusive",
    "finite",
    "layout",
    "less_than",
    "let",
    "live",
    "multiple_of",
    "named_axes",
    "needs",
    "no_overlap",
    "nondecreasing",
    "present",
    "rank",
    "require",
    "same_device",
    "same_dim",
    "same_dtype",
    "same_empty",
    "shape",
    "starts_at",
    "steps",
    "steps_at_most",
    "together",
    "upto",
    "values",
    "within",
]


class Present(Clause):
    """Claims that an argument is not None."""

    __slots__ = ()


class Rank(Clause):
    """Claims the number of axes."""

    __slots__ = ()


class Dtype(Clause):
    """Claims the dtype, ``OneOf`` included."""

    __slots__ = ()


class Layout(Clause):
    """Claims the layout constraints."""

    __slots__ = ()


class NamedAxes(Clause):
    """Claims the names that a program gave to the axes."""

    __slots__ = ()


class Device(Clause):
    """Claims the device constraints."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shape(Clause):
    """Claims the rank and the named axes; all of them where none is named."""

    axes: tuple[str, ...] | None = None

    def __str__(self) -> str:
        axes = "" if self.axes is None else f", axes={' '.join(self.axes)!r}"
        return f"shape({', '.join(repr(n) for n in self.names)}{axes})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SameDim(Clause):
    """Claims one dim between the named parameters only; the first is the reference."""

    dim: str = ""

    def __str__(self) -> str:
        return f"same_dim({', '.join(repr(n) for n in (self.dim, *self.names))})"


class SameDtype(Clause):
    """Adds: equal dtypes; the first is the reference."""

    __slots__ = ()


class SameDevice(Clause):
    """Adds: equal devices; the first is the reference."""

    __slots__ = ()


class NoOverlap(Clause):
    """Adds: no shared bytes."""

    __slots__ = ()


class Together(Clause):
    """Adds: all given or none."""

    __slots__ = ()


class Needs(Clause):
    """Adds: the first only with all the others."""

    __slots__ = ()


class Exclusive(Clause):
    """Adds: at most one given."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Let(Clause):
    """Derives dims or helper values at its place in the list."""

    rules: tuple[tuple[str, Rule], ...] = ()

    def __str__(self) -> str:
        return f"let({', '.join(n for n, _ in self.rules)})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Require(Clause):
    """Adds a relation over dims and arguments."""

    rule: Rule = bool
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"require({', '.join(lambda_parameters(self.rule))})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AnyOf(Clause):
    """Several clauses with one error: broken if any of them is."""

    members: tuple[Clause, ...] = ()

    def __str__(self) -> str:
        return f"any_of({', '.join(str(m) for m in self.members)})"


def rules_of(clause: Clause) -> Iterator[Rule]:
    """Functions that the author wrote into a clause."""
    if clause.when is not None:
        yield clause.when
    if isinstance(clause, Require):
        yield clause.rule
    elif isinstance(clause, Let):
        yield from (rule for _, rule in clause.rules)
    elif isinstance(clause, Values):
        yield from clause.rules()
    elif isinstance(clause, AnyOf):
        for member in clause.members:
            yield from rules_of(member)


def present(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """The arguments must not be None.

    Args:
        *names: Parameters.
        error: Raised where one is None.
        when: Condition that limits the clause.
    """
    return Present(named("present", names), error, when)


def rank(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """The number of axes must be the annotated one.

    Args:
        *names: Parameters.
        error: Raised for a wrong rank.
        when: Condition that limits the clause.
    """
    return Rank(named("rank", names), error, when)


def dtype(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """The dtype must be an annotated one, ``OneOf`` included.

    Args:
        *names: Parameters.
        error: Raised for a wrong dtype.
        when: Condition that limits the clause.
    """
    return Dtype(named("dtype", names), error, when)


def layout(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """The layout constraints of the annotations must hold.

    Args:
        *names: Parameters.
        error: Raised for a wrong layout.
        when: Condition that limits the clause.
    """
    return Layout(named("layout", names), error, when)


def named_axes(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """Axes that the program has named must have the annotated names, in the annotated order.

    Args:
        *names: Parameters annotated with the ``NamedAxes`` constraint.
        error: Raised for other names.
        when: Condition that limits the clause.
    """
    return NamedAxes(named("named_axes", names), error, when)


def device(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """The device constraints of the annotations must hold.

    Args:
        *names: Parameters.
        error: Raised for a wrong device.
        when: Condition that limits the clause.
    """
    return Device(named("device", names), error, when)


def shape(
    *names: str, axes: str | None = None, error: DocumentedError | None = None, when: Rule | None = None
) -> Clause:
    """Rank and axes must be the annotated ones.

    Args:
        *names: Parameters.
        axes: The axes to look at, as annotated and separated by blanks; all of them by default.
        error: Raised for a wrong shape.
        when: Condition that limits the clause.
    """
    return Shape(named("shape", names), error, when, None if axes is None else tuple(axes.split()))


def same_dim(dim: str, *names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """One dim must have the same size in these parameters.

    Args:
        dim: Dim name.
        *names: Parameters; the first is the reference.
        error: Raised where one differs.
        when: Condition that limits the clause.
    """
    return SameDim(named("same_dim", names, 2), error, when, dim)


def same_dtype(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """These tensors must have one dtype.

    Args:
        *names: Parameters; the first is the reference.
        error: Raised where one differs.
        when: Condition that limits the clause.
    """
    return SameDtype(named("same_dtype", names, 2), error, when)


def same_device(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """These tensors must be on one device.

    Args:
        *names: Parameters; the first is the reference.
        error: Raised where one differs.
        when: Condition that limits the clause.
    """
    return SameDevice(named("same_device", names, 2), error, when)


def no_overlap(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """The first tensor must share no byte with the others, nor with itself where it is written; not while tracing.

    Args:
        *names: Parameters.
        error: Raised for an overlap.
        when: Condition that limits the clause.
    """
    return NoOverlap(named("no_overlap", names), error, when)


def together(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """These optional arguments are given all or not at all.

    Args:
        *names: Parameters.
        error: Raised where only some are given.
        when: Condition that limits the clause.
    """
    return Together(named("together", names, 2), error, when)


def needs(name: str, *others: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """The first optional argument may be given only with the others.

    Args:
        name: Parameter that depends.
        *others: Parameters that it depends on.
        error: Raised where one of the others is None.
        when: Condition that limits the clause.
    """
    return Needs(named("needs", (name, *others), 2), error, when)


def exclusive(*names: str, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """At most one of these optional arguments is given.

    Args:
        *names: Parameters.
        error: Raised where several are given.
        when: Condition that limits the clause.
    """
    return Exclusive(named("exclusive", names, 2), error, when)


def let(**rules: Rule) -> Clause:
    """Derive dims or helper values from dims and arguments.

    Args:
        **rules: Name to function of dims and arguments; later ones may use earlier ones.
    """
    if not rules:
        raise ContractDefinitionError("let derives nothing")
    for rule in rules.values():
        lambda_parameters(rule)
    return Let((), None, None, tuple(rules.items()))


def require(
    rule: Rule,
    *,
    error: DocumentedError | None = None,
    when: Rule | None = None,
    about: str | Iterable[str] = (),
) -> Clause:
    """A relation over dims and arguments must hold.

    Args:
        rule: Function of dims and arguments, true where the relation holds.
        error: Raised where it is false.
        when: Condition that limits the clause.
        about: Parameter names for ``{name}`` and ``{names}``.
    """
    lambda_parameters(rule)
    subjects = (about,) if isinstance(about, str) else tuple(about)
    return Require((), error, when, rule, subjects)


def any_of(*members: Clause, error: DocumentedError | None = None, when: Rule | None = None) -> Clause:
    """Several clauses that raise one error.

    Args:
        *members: Clauses without errors of their own.
        error: Raised if any of them is broken.
        when: Condition that limits the clause.
    """
    if not members:
        raise ContractDefinitionError("any_of has no member")
    for member in members:
        if isinstance(member, (Let, AnyOf)):
            raise ContractDefinitionError(f"{member} cannot stand inside any_of")
        if member.error is not None:
            raise ContractDefinitionError(f"{member} has an error of its own inside any_of")
    return AnyOf((), error, when, members)
