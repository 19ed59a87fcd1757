"""What every clause is: names, an error, a condition; and the functions that its author wrote into it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._errors import ContractDefinitionError, DocumentedError

Rule = Callable[..., Any]
#: Starred parameters, and functions whose result is awaited or yielded: it would always count as true.
_NOT_PLAIN = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


def lambda_parameters(rule: Rule) -> tuple[str, ...]:
    """Names that a rule wants: its parameters.

    Raises:
        ContractDefinitionError: The rule is no plain function of named arguments.
    """
    code = getattr(rule, "__code__", None)
    if code is None or code.co_flags & _NOT_PLAIN or code.co_kwonlyargcount:
        raise ContractDefinitionError(f"{rule!r} must be a plain function of named arguments")
    return code.co_varnames[: code.co_argcount]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Clause:
    """Base of all clauses.

    Attributes:
        names: Parameters it speaks of, in the order given.
        error: Documented error, or None for the default text.
        when: Condition over dims and arguments; the clause is skipped where it is false.
    """

    names: tuple[str, ...] = ()
    error: DocumentedError | None = None
    when: Rule | None = None

    def __post_init__(self) -> None:
        error: object = self.error
        if not (error is None or isinstance(error, DocumentedError)):
            raise ContractDefinitionError(f"{self.verb}: error={error!r} is no DocumentedError")
        if self.when is not None:
            lambda_parameters(self.when)

    @property
    def verb(self) -> str:
        """Name of the function that makes the clause."""
        word = type(self).__name__
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in word).lstrip("_")

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(repr(n) for n in self.names)})"


def named(verb: str, names: tuple[str, ...], least: int = 1) -> tuple[str, ...]:
    """Parameter names of a clause, each once.

    Args:
        verb: Function that makes the clause.
        names: What its author gave for names.
        least: How many there must be.

    Raises:
        ContractDefinitionError: They are too few, no names, or one stands twice.
    """
    if len(names) < least:
        raise ContractDefinitionError(f"{verb} needs at least {least} parameter name{'s' * (least > 1)}")
    for name in names:
        checked: object = name
        if not isinstance(checked, str):
            raise ContractDefinitionError(f"{verb} takes parameter names, not {name!r}")
    repeated = [n for n in names if names.count(n) > 1]
    if repeated:
        raise ContractDefinitionError(f"{verb} names {repeated[0]} twice")
    return names
