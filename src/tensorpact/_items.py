"""Tensors inside containers: every item of a list, tuple, mapping or named tuple, each under a name of its own."""

import collections.abc
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from ._errors import ContractDefinitionError
from ._hints import is_none, is_tensor_hint, members, mentions_tensor, unwrap

_REPEATED: tuple[Any, ...] = (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.deque)
_MAPPINGS: tuple[Any, ...] = (dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict)
_UNORDERED: tuple[Any, ...] = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_COLLECTED = "collected by a starred parameter"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Items:
    """A container hint with tensors inside.

    Attributes:
        form: Whether it repeats one hint, lists a fixed number of them, maps keys, or has named fields.
        container: Class that the value must be an instance of.
        members: Key and hint of each member; one member without a key where a hint repeats.
        required: Keys that a mapping with known keys must have.
        key: Hint of the keys of a mapping; ``Any`` where it says nothing.
    """

    form: Literal["each", "fixed", "mapping", "fields", "keys"]
    container: Any
    members: tuple[tuple[str, Any], ...]
    required: tuple[str, ...] = ()
    key: Any = Any

    def contained(self, value: Any) -> list[tuple[str, Any, Any]]:
        """Suffix, hint and value of every item; items that are missing or too many are left to :meth:`fits`."""
        if self.form == "each" and self.container in _UNORDERED:
            return [(f" item {item!r}", self.members[0][1], item) for item in value]
        if self.form == "each":
            return [(f"[{i}]", self.members[0][1], item) for i, item in enumerate(value)]
        if self.form == "mapping":
            keys = [] if self.key is Any else [(f" key {key!r}", self.key, key) for key in value]
            return [*keys, *((f"[{key!r}]", self.members[0][1], item) for key, item in value.items())]
        if self.form == "keys":
            return [(f"[{key!r}]", hint, value[key]) for key, hint in self.members if key in value]
        if self.form == "fields":
            return [(f".{key}", hint, getattr(value, key)) for key, hint in self.members]
        return [(f"[{i}]", hint, item) for i, ((_, hint), item) in enumerate(zip(self.members, value, strict=True))]

    def fits(self, value: Any) -> bool:
        """Whether a value is such a container, with the right number of items."""
        if not isinstance(value, self.container):
            return False
        if self.form == "fixed":
            return len(value) == len(self.members)
        return all(key in value for key in self.required)

    def expected(self) -> str:
        """What a value has to be, for a reader."""
        name = getattr(self.container, "__name__", str(self.container))
        if self.form == "fixed":
            return f"{name} of {len(self.members)}"
        if self.form == "keys":
            return f"{name} with the keys {', '.join(key for key in self.required)}"
        return name

    def templates(self) -> list[tuple[str, Any]]:
        """Suffix and hint of each kind of item."""
        if self.form in ("each", "mapping"):
            keys = [] if self.key is Any else [(" keys", self.key)]
            return [*keys, ("[]", self.members[0][1])]
        if self.form == "fixed":
            return [(f"[{i}]", hint) for i, (_, hint) in enumerate(self.members)]
        forms = {"fields": ".{}", "keys": "[{!r}]"}
        return [(forms[self.form].format(key), hint) for key, hint in self.members]


def parts(hint: Any) -> list[Any]:
    """The members of a union, each a hint with its metadata around it."""
    return [member if is_none(member) or not own else Annotated[(member, *own)] for member, own in members(hint)]


def read_plain_items(hint: Any) -> Items | None:
    """Read a container hint without tensors; None where it says nothing of items that can be looked at."""
    hint = unwrap(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if any(getattr(a, "__unpacked__", False) or typing.get_origin(a) is typing.Unpack for a in arguments):
        return None
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return Items("fixed", tuple, tuple(("", a) for a in arguments))
    if origin in (*_REPEATED, tuple, *_UNORDERED):
        return Items("each", origin, (("", arguments[0]),))
    if origin in _MAPPINGS:
        return Items("mapping", origin, (("", arguments[1]),), key=arguments[0])
    return None


def read_items(hint: Any, owner: str) -> Items | None:
    """Read a container hint; None where no tensor is inside.

    Args:
        hint: A hint that is no union.
        owner: Function and parameter, for messages.

    Raises:
        ContractDefinitionError: The container cannot be looked through without using it up.
    """
    hint = unwrap(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if _COLLECTED not in arguments[1:]:
            return read_items(arguments[0], owner)
        *_, repeated = (a for a in typing.get_args(arguments[0]) if a is not Ellipsis)
        mapping = typing.get_origin(arguments[0]) is dict
        return Items("mapping" if mapping else "each", dict if mapping else tuple, (("", repeated),))
    if isinstance(hint, type) and not arguments:
        return _read_class(hint)
    if not mentions_tensor(hint) or origin is None:
        return None
    if origin is tuple:
        if arguments[-1:] == (Ellipsis,):
            return Items("each", tuple, (("", arguments[0]),))
        return Items("fixed", tuple, tuple(("", a) for a in arguments))
    if origin in _REPEATED:
        return Items("each", origin, (("", arguments[0]),))
    if origin in _MAPPINGS:
        return Items("mapping", origin, (("", arguments[1]),), key=arguments[0])
    raise ContractDefinitionError(
        f"{owner}: tensors inside {hint!r} cannot be checked; lists, tuples, mappings and named tuples can"
    )


def _read_class(hint: Any) -> Items | None:
    named = tuple in hint.__mro__ and hasattr(hint, "_fields")
    if not (named or typing.is_typeddict(hint)):
        return None
    fields = typing.get_type_hints(hint, include_extras=True)
    if not any(mentions_tensor(h) for h in fields.values()):
        return None
    if named:
        return Items("fields", hint, tuple(fields.items()))
    required = tuple(key for key in fields if key in hint.__required_keys__)
    return Items("keys", dict, tuple(fields.items()), required)


def expand(name: str, hint: Any, value: Any, owner: str) -> Iterator[tuple[str, Any, Any]]:
    """Name, hint and value of every part of a value that a hint speaks of.

    Args:
        name: How messages call the value.
        hint: Its hint; of a union the container that the value is an instance of is taken.
        value: The value.
        owner: The function, for messages.
    """
    containers = [(m, i) for m in parts(hint) if (i := read_items(m, f"{owner}: {name}")) is not None]
    if not containers:
        yield name, hint, value
        return
    fitting = [items for _, items in containers if items.fits(value)]
    if fitting:
        # Of several that fit, the one whose items are of the right class and dtype; else the first, for its message.
        chosen = next((items for items in fitting if _resembles(items, value, owner)), fitting[0])
        for suffix, inner, item in chosen.contained(value):
            yield from expand(name + suffix, inner, item, owner)
        return
    rest = [m for m in parts(hint) if m not in [c for c, _ in containers]]
    if any(mentions_tensor(m) for m in rest):
        yield name, Union[tuple(rest)], value  # noqa: UP007 - members are known at run time only
    else:
        yield name, Unfit(tuple(items.expected() for _, items in containers), tuple(rest)), value


def _resembles(items: Items, value: Any, owner: str) -> bool:
    return all(any(_suits(part, item, owner) for part in parts(inner)) for _, inner, item in items.contained(value))


def _suits(hint: Any, value: Any, owner: str) -> bool:
    items = read_items(hint, owner)
    if items is not None:
        return items.fits(value) and _resembles(items, value, owner)
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    if not is_tensor_hint(bare):
        return True
    # jaxtyping's own look at a tensor of any shape: class and dtype alone.
    return isinstance(value, bare.dtype[bare.array_type, "..."])


@dataclass(frozen=True, slots=True)
class Unfit:
    """Stands where a hint stands, for a value that is none of the containers.

    Attributes:
        containers: What was expected, as text.
        rest: Members of the union without tensors, which the value may still fit.
    """

    containers: tuple[str, ...]
    rest: tuple[Any, ...] = ()


def templates(name: str, hint: Any, owner: str) -> Iterator[tuple[str, Any]]:
    """Name and hint of each kind of part that values of a hint can have."""
    for member in parts(hint):
        items = read_items(member, f"{owner}: {name}")
        if items is None:
            if not is_none(member):
                yield name, member
            continue
        for suffix, inner in items.templates():
            yield from templates(name + suffix, inner, owner)


def is_nested(hint: Any, owner: str) -> bool:
    """Whether a hint has tensors inside containers."""
    return any(read_items(m, owner) is not None for m in parts(hint))


def starred_hint(hint: Any, keywords: bool) -> Any:
    """The hint of all the values that ``*args`` or ``**kwargs`` collects; each is looked at, tensor or not."""
    collected: Any = dict[str, hint] if keywords else tuple[hint, ...]
    return Annotated[collected, _COLLECTED]
