"""What a hint is made of: its members, and whether a jaxtyping array hint is among them."""

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union

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
        elif type(typing.get_origin(hint)).__name__ == "TypeAliasType":
            # A generic alias such as `Pair[T]`, given its argument.
            alias: Any = typing.get_origin(hint)
            hint = alias.__value__[typing.get_args(hint)]
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


def evaluate_hint(hint: Any, scope: Mapping[str, Any], local: Mapping[str, Any]) -> Any:
    """An annotation with every text in it evaluated, however deep it stands; anything else as it is.

    Raises:
        Exception: Whatever a text raises.
    """
    if isinstance(hint, ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        return evaluate_hint(eval(hint, dict(scope), dict(local)), scope, local)
    if not holds_text(hint):
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return Annotated[(evaluate_hint(arguments[0], scope, local), *arguments[1:])]
    inner = tuple(evaluate_hint(a, scope, local) for a in arguments)
    if origin in (Union, types.UnionType):
        return Union[inner]  # noqa: UP007 - members are known at run time only
    return hint.copy_with(inner) if hasattr(hint, "copy_with") else origin[inner]


def holds_text(hint: Any) -> bool:
    """Whether an annotation is text, or has text inside that stands for a hint."""
    if isinstance(hint, (str, ForwardRef)):
        return True
    origin = typing.get_origin(hint)
    if origin is None or origin is Literal:
        return False
    arguments = typing.get_args(hint)[:1] if origin is Annotated else typing.get_args(hint)
    return any(holds_text(a) for a in arguments)


def annotations_of(function: Any) -> dict[str, Any]:
    """Annotations as they are written, without looking at what they name: from 3.14 on they are evaluated late."""
    if sys.version_info >= (3, 14):
        import annotationlib  # pyright: ignore[reportMissingImports] - of 3.14

        late: Any = annotationlib
        return late.get_annotations(function, format=late.Format.FORWARDREF)
    return getattr(function, "__annotations__", {})


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, annotations as :func:`annotations_of` has them."""
    if sys.version_info >= (3, 14):
        import annotationlib  # pyright: ignore[reportMissingImports] - of 3.14

        late: Any = annotationlib
        read: Any = inspect.signature
        return read(function, annotation_format=late.Format.FORWARDREF)
    return inspect.signature(function)
