"""The dims of a call, seen by ``isinstance`` inside its body: jaxtyping's dynamic context, where a body asks for it.

Opening one costs more than a whole guard and cannot be traced, so only a body that itself compares something with a
jaxtyping hint is given it.
"""

import builtins
import inspect
import types
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import jaxtyping
import torch

from ._frames import closed_over
from ._reference import stock_axes
from ._terms import Terms


def asks_hints(body: types.FunctionType) -> bool:
    """Whether the code of a function, or of a function inside it, compares something with a jaxtyping hint."""
    names = set(_names(body.__code__))
    scopes = (body.__globals__, vars(builtins))
    found = [next(s[n] for s in scopes if n in s) for n in names if any(n in s for s in scopes)]
    found += [value for name, value in closed_over(body).items() if name in names]
    if any(value is jaxtyping.print_bindings for value in found):
        return True
    return any(value is isinstance for value in found) and any(value is jaxtyping or _is_hint(value) for value in found)


def _is_hint(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, (jaxtyping.AbstractDtype, jaxtyping.AbstractArray))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def in_scope(body: Callable[..., Any], terms: Terms) -> Callable[..., Any]:
    """A body that runs in a jaxtyping context of its own, in which the dims of the arguments are bound.

    Args:
        body: The undecorated function.
        terms: The contract laid on its signature.
    """
    signature = inspect.signature(body)
    bare = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    axes = stock_axes(terms)

    @wraps(body)
    def bound(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        given = bare.bind(*args, **kwargs).arguments
        for name, hint in axes.items():
            isinstance(given.get(name), hint)  # a check that passes binds the names in it
        return body(*args, **kwargs)

    bound.__signature__ = bare  # type: ignore[attr-defined]
    opened: Callable[..., Any] = jaxtyping.jaxtyped(bound, typechecker=_unchecked)

    @wraps(body)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return body(*args, **kwargs) if torch.compiler.is_compiling() else opened(*args, **kwargs)

    return scoped


def _unchecked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A type checker for jaxtyping that checks nothing: the arguments have been looked at."""
    return function
