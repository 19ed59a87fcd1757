"""What a hint is made of: its members, and whether a jaxtyping array hint is among them."""

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, Union

from jaxtyping import AbstractArray


def is_tensor_hint(hint: Any) -> bool:
    """Whether a hint is a jaxtyping array hint."""
    return isinstance(hint, type) and issubclass(hint, AbstractArray) and hint is not AbstractArray


def mentions_tensor(hint: Any) -> bool:
    """Whether a hint holds a jaxtyping array hint anywhere inside."""
    inner = unwrap(hint)
    return is_tensor_hint(inner) or any(mentions_tensor(a) for a in typing.get_args(inner))


def unwrap(hint: Any) -> Any:
    """The hint behind a type alias, a ``NewType`` or a type variable; anything else as it is."""
    while True:
        if type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar) and (hint.__bound__ is not None or hint.__constraints__):
            constraints: Any = Union[hint.__constraints__] if hint.__constraints__ else None  # noqa: UP007 - a tuple
            hint = hint.__bound__ if hint.__bound__ is not None else constraints
        else:
            return hint


def members(hint: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Members of a union with the ``Annotated`` metadata around each; the hint alone where it is none."""
    hint = unwrap(hint)
    origin = typing.get_origin(hint)
    if origin is Annotated:
        inner, *metadata = typing.get_args(hint)
        for member, own in members(inner):
            yield member, (*own, *metadata)
    elif origin in (Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from members(member)
    else:
        yield hint, ()


def is_none(hint: Any) -> bool:
    """Whether a hint is that of None."""
    return hint is None or hint is type(None)
