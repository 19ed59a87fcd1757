"""Arguments made of parts: containers with tensors inside, and objects of a dataclass."""

import collections
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensorpact import enforcement
from tensorpact._annotations import Parameter, read_hint
from tensorpact._hints import is_none
from tensorpact._items import Items, is_nested, parts, read_items

_KEYS: Mapping[Any, tuple[Any, ...]] = {str: ("a", "b", "c", "d"), int: (0, 1, 2, 3), typing.Any: ("a", "b", "c", "d")}


@dataclass(frozen=True, slots=True)
class Whole:
    """The plan of an argument whose parts have plans of their own.

    Attributes:
        form: How the parts are put together.
        cls: Class of the result.
        parts: Names of the parts among the plans.
        keys: Key, field or parameter of each part, where it has one.
        hints: What each part is annotated with; None for a part that is no tensor.
    """

    form: Literal["sequence", "mapping", "fields", "object"]
    cls: Any
    parts: tuple[str, ...]
    keys: tuple[Any, ...] = ()
    hints: tuple[Parameter | None, ...] = ()

    def made(self, items: list[Any]) -> Any:
        """The argument, from its parts in order."""
        if self.form == "sequence":
            return self.cls(items)
        if self.form == "mapping":
            return dict(zip(self.keys, items, strict=True))
        if self.form == "fields":
            return self.cls(*items)
        # An object with wrong fields is made too: what it is handed to is what has to refuse it.
        with enforcement("off"):
            return self.cls(**dict(zip(self.keys, items, strict=True)))

    def text(self, items: list[str]) -> str:
        """Python that makes the argument, from the text of its parts."""
        if self.form == "mapping":
            return "{" + ", ".join(f"{k!r}: {i}" for k, i in zip(self.keys, items, strict=True)) + "}"
        if self.form == "object":
            given = ", ".join(f"{k}={i}" for k, i in zip(self.keys, items, strict=True))
            return f"{self.cls.__qualname__}({given})"
        if self.form == "fields":
            return f"{self.cls.__qualname__}({', '.join(items)})"
        if self.cls is tuple:
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        listed = f"[{', '.join(items)}]"
        return listed if self.cls is list else f"{self.cls.__module__}.{self.cls.__qualname__}({listed})"


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A container before its tensors have sizes.

    Attributes:
        form: As of :class:`Whole`.
        cls: Class of the result.
        suffixes: What each part is called behind the name of the whole.
        keys: Key or field of each part, where it has one.
        items: What each part is: the annotation of a tensor, a container, or a plain value.
        repeats: Whether there may be fewer or more parts.
    """

    form: Literal["sequence", "mapping", "fields"]
    cls: Any
    suffixes: tuple[str, ...]
    keys: tuple[Any, ...]
    items: tuple[Any, ...]
    repeats: bool = False

    def fewer(self) -> "Skeleton | None":
        """With one part less; None where that is no such container."""
        if not self.repeats or not self.items:
            return None
        return replace(self, suffixes=self.suffixes[:-1], keys=self.keys[:-1], items=self.items[:-1])


def skeleton(name: str, hint: Any, owner: str, value: Callable[[Parameter], Any], count: int) -> Skeleton:
    """A container as a hint has it.

    Args:
        name: What templates call the whole, for example ``xs``.
        hint: Its annotation.
        owner: The function, for messages.
        value: Gives a value for a part that is no tensor.
        count: How many parts where the hint leaves it open.

    Raises:
        LookupError: No such container can be made; the text says of what.
    """
    for member in parts(hint):
        items = read_items(member, f"{owner}: {name}")
        if items is not None:
            return _of_items(name, items, owner, value, count)
    raise LookupError(f"{hint!r}")


def _of_items(name: str, items: Items, owner: str, value: Callable[[Parameter], Any], count: int) -> Skeleton:
    def item(suffix: str, hint: Any) -> Any:
        if is_nested(hint, owner):
            return skeleton(name + suffix, hint, owner, value, count)
        found = read_hint(name + suffix, hint, owner)
        return found if found.tensor is not None else None if is_none(hint) else value(found)

    if items.form == "fixed":
        suffixes = tuple(f"[{i}]" for i in range(len(items.members)))
        made = tuple(item(s, hint) for s, (_, hint) in zip(suffixes, items.members, strict=True))
        return Skeleton("sequence", tuple, suffixes, (), made)
    if items.form in ("fields", "keys"):
        names = tuple(key for key, _ in items.members)
        fields = items.form == "fields"
        suffixes = tuple(f".{n}" if fields else f"[{n!r}]" for n in names)
        made = tuple(item(s, hint) for s, (_, hint) in zip(suffixes, items.members, strict=True))
        return Skeleton("fields" if fields else "mapping", items.container, suffixes, names, made)
    repeated = item("[]", items.members[0][1])
    if items.form == "mapping":
        if items.key not in _KEYS:
            raise LookupError(f"keys of {items.key!r}")
        keys = _KEYS[items.key][:count]
        return Skeleton("mapping", dict, tuple(f"[{k!r}]" for k in keys), keys, (repeated,) * len(keys), True)
    cls = {tuple: tuple, collections.deque: collections.deque}.get(items.container, list)
    if not isinstance(cls(()), items.container):
        raise LookupError(f"items of {items.container!r}")  # noqa: TRY004 - a hint, not an argument, is at fault
    return Skeleton("sequence", cls, tuple(f"[{i}]" for i in range(count)), (), (repeated,) * count, True)


def flattened(name: str, frame: Skeleton) -> Iterator[tuple[str, Any]]:
    """Name and content of the whole and of each of its parts, inner ones included; a tensor is its annotation."""
    names = tuple(name + s for s in frame.suffixes)
    hints = tuple(i if isinstance(i, Parameter) else None for i in frame.items)
    yield name, Whole(frame.form, frame.cls, names, frame.keys, hints)
    for part, item in zip(names, frame.items, strict=True):
        if isinstance(item, Skeleton):
            yield from flattened(part, item)
        else:
            yield part, item


def parts_of(plans: Mapping[str, Any]) -> set[str]:
    """Names of the plans that are parts of others."""
    return {part for plan in plans.values() if isinstance(plan, Whole) for part in plan.parts}


def put_together(plans: Mapping[str, Any], made: dict[str, Any]) -> None:
    """Make the wholes, once all else is made."""

    def make(name: str) -> Any:
        plan = plans[name]
        if isinstance(plan, Whole):
            made[name] = plan.made([make(part) for part in plan.parts])
        return made[name]

    for name, plan in plans.items():
        if isinstance(plan, Whole):
            make(name)


def identifier(name: str) -> str:
    """A variable for a plan: ``xs[0]`` becomes ``xs_0``."""
    return re.sub(r"\W+", "_", name).strip("_")
