"""Hints that are not tensors: scalars by our rule, everything else by beartype's generated code, built lazily."""

import sys
import typing
from collections.abc import Callable
from typing import Annotated, Any, Union

import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation, BeartypeDecorHintException

from ._errors import ContractDefinitionError
from ._hints import is_none, members, unwrap
from ._items import Unfit


def is_int(value: Any) -> bool:
    """Whether a value fits the hint ``int``: a Python or NumPy integer, never a bool."""
    if isinstance(value, int):
        return not isinstance(value, bool)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.integer)


def is_float(value: Any) -> bool:
    """Whether a value fits the hint ``float``: a Python or NumPy float or a Python int, never a bool."""
    if isinstance(value, float):
        return True
    if isinstance(value, int):
        return not isinstance(value, bool)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.floating)


#: The scalars that have a rule of ours, since beartype lets a bool pass for an int.
_RULES: dict[Any, Callable[[Any], bool]] = {int: is_int, float: is_float}


class TypeCheck:
    """Whether a value fits a hint that is no tensor.

    Args:
        hint: The hint, None left out.
        label: Function and parameter, for messages.
    """

    __slots__ = ("_accepts", "_label", "_rest", "exact", "limited", "plain", "rules")

    def __init__(self, hint: Any, label: str) -> None:
        #: Containers that the value is none of are no part of the check, only of its message.
        split = list(members(Union[hint.rest] if isinstance(hint, Unfit) and hint.rest else hint))  # noqa: UP007
        if isinstance(hint, Unfit) and not hint.rest:
            split = []
        plain = [m for m, own in split if not own]
        self.rules: tuple[Callable[[Any], bool], ...] = tuple(rule for kind, rule in _RULES.items() if kind in plain)
        #: Scalars under validators: the rule first, then beartype's code for what is validated.
        self.limited: tuple[tuple[Callable[[Any], bool], TypeCheck], ...] = tuple(
            (_RULES[m], TypeCheck(Annotated[(object, *own)], label)) for m, own in split if own and m in _RULES
        )
        rest = tuple(Annotated[(m, *own)] if own else m for m, own in split if m not in _RULES)
        #: Classes whose exact instances fit without a further look.
        self.exact: tuple[type, ...] = tuple(m for m in plain if m in (int, float, bool, str))
        self.plain = tuple(m for m, _ in split if m not in _RULES)
        self._rest: Any = Union[rest] if rest else None  # noqa: UP007 - members are known at run time only
        self._label = label
        self._accepts: Callable[[Any], Any] | None = None

    def __call__(self, value: Any) -> bool:
        if any(rule(value) for rule in self.rules):
            return True
        if any(rule(value) and accepts(value) for rule, accepts in self.limited):
            return True
        if self._rest is None:
            return False
        if torch.compiler.is_dynamo_compiling():
            return self._looks_right(value)
        if self._accepts is None:
            self._accepts = self._build()
        try:
            self._accepts(value)
        except BeartypeCallHintViolation:
            return False
        return True

    def _looks_right(self, value: Any) -> bool:
        """What Dynamo can trace of a check: the classes, not what is inside them."""
        classes = tuple(c for m in self.plain if isinstance(c := typing.get_origin(m) or m, type))
        return len(classes) < len(self.plain) or isinstance(value, classes)

    def _build(self) -> Callable[[Any], Any]:
        def accepts(value: Any) -> None:
            pass

        accepts.__annotations__ = {"value": self._rest, "return": None}
        try:
            return beartype(accepts)
        except BeartypeDecorHintException as bad:
            raise ContractDefinitionError(f"{self._label}: beartype refuses the hint {self._rest!r}: {bad}") from bad


def is_checkable(hint: Any, empty: Any) -> bool:
    """Whether a hint says anything at all."""
    inner = unwrap(hint)
    return not (inner is empty or inner is Any or inner is object or isinstance(inner, typing.TypeVar))


def describe_hint(hint: Any) -> str:
    """A hint as a reader would write it."""
    if isinstance(hint, Unfit):
        return " or ".join((*hint.containers, *(describe_hint(m) for m in hint.rest)))
    split = [Annotated[(m, *own)] if own else m for m, own in members(hint)]
    if len(split) > 1:
        return " or ".join(describe_hint(m) for m in split)
    if is_none(hint):
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return repr(hint).replace("typing.", "")
