"""Hints that are not tensors: scalars by our rule, everything else by beartype's generated code, built lazily."""

import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Union

from beartype import beartype
from beartype.roar import BeartypeCallHintViolation, BeartypeDecorHintException

from ._errors import ContractDefinitionError


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


def _split(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


class TypeCheck:
    """Whether a value fits a hint that is no tensor.

    Args:
        hint: The hint, None left out.
        label: Function and parameter, for messages.
    """

    __slots__ = ("_accepts", "_label", "_rest", "exact", "rules")

    def __init__(self, hint: Any, label: str) -> None:
        members = _split(hint)
        self.rules: tuple[Callable[[Any], bool], ...] = (
            *((is_int,) if int in members else ()),
            *((is_float,) if float in members else ()),
        )
        rest = tuple(m for m in members if m not in (int, float))
        #: Classes whose exact instances fit without a further look.
        self.exact: tuple[type, ...] = tuple(m for m in members if m in (int, float, bool, str))
        self._rest: Any = Union[rest] if rest else None  # noqa: UP007 - members are known at run time only
        self._label = label
        self._accepts: Callable[[Any], Any] | None = None

    def __call__(self, value: Any) -> bool:
        if any(rule(value) for rule in self.rules):
            return True
        if self._rest is None:
            return False
        if self._accepts is None:
            self._accepts = self._build()
        try:
            self._accepts(value)
        except BeartypeCallHintViolation:
            return False
        return True

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
    return not (hint is empty or hint is Any or hint is object or isinstance(hint, typing.TypeVar))


def describe_hint(hint: Any) -> str:
    """A hint as a reader would write it."""
    if len(_split(hint)) > 1:
        return " or ".join(describe_hint(m) for m in _split(hint))
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return repr(hint).replace("typing.", "")
