"""The places where a function is named: exchanged, given back, and left alone where somebody else came later."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from ._apply_targets import Found, set_attribute

_ABSENT = object()


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One name that was exchanged.

    Attributes:
        owner: The module, class or namespace.
        name: The attribute.
        before: What stood there, or a mark where it only looked so, by inheritance.
        now: What was put there.
        text: How a message names it.
    """

    owner: Any
    name: str
    before: Any
    now: Any
    text: str

    def restore(self) -> bool:
        """Give the name back, and say whether that was possible: somebody else's object stays."""
        if vars(self.owner).get(self.name, _ABSENT) is not self.now:
            return False
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            set_attribute(self.owner, self.name, self.before)
        return True


def exchange(found: Found, function: Any, text: str) -> Place:
    """Put a function where another stands, as the same kind of method.

    Raises:
        ApplyError: The owner does not allow it.
    """
    now = like(found.raw, function)
    before: Any = cast("dict[str, Any]", vars(found.owner)).get(found.name, _ABSENT)
    set_attribute(found.owner, found.name, now)
    return Place(found.owner, found.name, before, now, text)


def like(raw: Any, function: Any) -> Any:
    """A function as the kind of method that something else is."""
    if isinstance(raw, (staticmethod, classmethod)):
        kind = cast("Callable[[Any], Any]", type(cast("object", raw)))
        return kind(function)
    return function


def aliases(function: Any, packages: Sequence[str]) -> Iterator[Found]:
    """Every module and class attribute of imported packages that is a function itself, under whatever name.

    Args:
        function: The very object.
        packages: Names of packages or modules; submodules belong to them.
    """
    for name, module in tuple(sys.modules.items()):
        if any(name == p or name.startswith(f"{p}.") for p in packages):
            yield from _in_namespace(module, name, function, set())


def _in_namespace(owner: Any, module: str, function: Any, seen: set[int]) -> Iterator[Found]:
    seen.add(id(owner))
    for name, value in tuple(getattr(owner, "__dict__", {}).items()):
        inner = behind(value)
        if inner is function:
            yield Found(owner, name, value, function)
        elif isinstance(value, type) and id(value) not in seen and value.__module__ == module:
            yield from _in_namespace(value, module, function, seen)


def behind(raw: Any) -> Any:
    """The function of a static or class method; anything else itself."""
    return cast(Any, raw).__func__ if isinstance(raw, (staticmethod, classmethod)) else raw


def place_text(owner: Any, name: str) -> str:
    """How a message names a place: its module or class, and the attribute."""
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}.{name}"
    return f"{owner.__module__}.{owner.__qualname__}.{name}" if isinstance(owner, type) else f"{owner}.{name}"
