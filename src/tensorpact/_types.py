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
from ._items import Items, Unfit, read_plain_items
from ._validators import validator_text


def is_int(value: Any) -> bool:
    """Whether a value fits the hint ``int``: a Python or NumPy integer, never a bool."""
    if isinstance(value, int):
        return not isinstance(value, bool)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.integer)


def is_float(value: Any) -> bool:
    """Whether a value fits the hint ``float``: a float or an integer, Python's or NumPy's, never a bool."""
    if isinstance(value, float) or is_int(value):
        return True
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

    __slots__ = ("_accepts", "_label", "_rest", "containers", "exact", "limited", "plain", "rules")

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
        #: Containers: the class by ``isinstance``, then every item; beartype would look at one of them.
        found = [(items, m) for m, own in split if not own and (items := read_plain_items(m)) is not None]
        self.containers: tuple[Container, ...] = tuple(Container(items, label) for items, _ in found)
        apart = [m for _, m in found]
        rest = tuple(Annotated[(m, *own)] if own else m for m, own in split if m not in _RULES and m not in apart)
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
        if torch.compiler.is_dynamo_compiling():
            return bool(self.plain) and self._looks_right(value)
        if any(container.wrong(value) is None for container in self.containers):
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

    def wrong_item(self, value: Any) -> tuple[str, Any, Any] | None:
        """Suffix, hint and value of the item that is to blame; None where the value as a whole is."""
        found = [c.wrong(value) for c in self.containers if c.items.fits(value)]
        return found[0] if len(found) == 1 and found[0] is not None and found[0][0] else None

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


class Container:
    """A container hint without tensors, and the checks of its items.

    Args:
        items: The hint, read.
        label: Function and parameter, for messages.
    """

    __slots__ = ("_checks", "items")

    def __init__(self, items: Items, label: str) -> None:
        self.items = items
        hints = [hint for _, hint in items.members] + ([] if items.key is Any else [items.key])
        self._checks = {id(hint): TypeCheck(hint, label) for hint in hints if is_checkable(hint, Any)}

    def wrong(self, value: Any) -> tuple[str, Any, Any] | None:
        """Suffix, hint and value of the first item that does not fit; an empty suffix for the container itself."""
        if not self.items.fits(value):
            return "", None, value
        for suffix, hint, item in self.items.contained(value):
            check = self._checks.get(id(hint))
            if check is None or type(item) in check.exact or (item is None and is_none_allowed(hint)) or check(item):
                continue
            inner = check.wrong_item(item)
            return (suffix, hint, item) if inner is None else (suffix + inner[0], *inner[1:])
        return None


def is_none_allowed(hint: Any) -> bool:
    """Whether None is a member of a hint."""
    return any(is_none(m) for m, _ in members(hint))


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
    if typing.get_origin(hint) is Annotated:
        inner, *metadata = typing.get_args(hint)
        return f"Annotated[{describe_hint(inner)}, {', '.join(validator_text(m) for m in metadata)}]"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return repr(hint).replace("typing.", "")
