"""Ready overlays: a contract and a stub for a function of somebody else, under one name."""

import importlib
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from tensorpact._contract import Contract
from tensorpact._decorator import disabled
from tensorpact._entry import Entry, raise_error
from tensorpact._frames import closed_over
from tensorpact._hints import evaluate_hint, signature_of

from ._apply_targets import look_up, parse
from ._apply_wrap import Overlay, foreign_of, forwarder, resolving

P = ParamSpec("P")
R = TypeVar("R")
_MARK = "__overlay__"


def overlay(
    target: str, contract: Contract, *, beside: Callable[[Any], Iterable[tuple[Any, str, Any]]] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make an overlay of a stub: a contracted function that calls the foreign one, for use as it is or by ``apply``.

    The foreign module is imported at the first call.

    Args:
        target: The foreign function, as ``module:name``.
        contract: What it promises.
        beside: Other attributes that ``apply`` exchanges with it, made of the foreign function: owner, name and what
            stands there as long as the contract is on.
    """
    parse(target)

    def decorate(stub: Callable[P, R]) -> Callable[P, R]:
        made = Overlay(target, contract, cast(FunctionType, stub), beside)
        written = signature_of(stub)
        body = forwarder(
            resolving(lambda: _foreign(target)), list(written.parameters.values()), "plain", target, by_name=True
        )
        scope = closed_over(stub)
        body.__annotations__ = {
            name: evaluate_hint(hint, getattr(stub, "__globals__", {}), scope)
            for name, hint in getattr(stub, "__annotations__", {}).items()
        }
        body.__name__, body.__qualname__, body.__module__ = stub.__name__, stub.__qualname__, stub.__module__
        body.__doc__ = stub.__doc__
        body.__dict__[_MARK] = made
        if disabled:
            return body
        entry = Entry(body, contract, False, {})
        entry.read()
        return entry.function()

    return decorate


def _foreign(target: str) -> Any:
    name = parse(target)
    return foreign_of(look_up(name, importlib.import_module(name.module)).function)


def overlay_of(made: Any) -> Overlay | None:
    """The overlay behind a function that :func:`overlay` has made; None where it has not."""
    found = getattr(made, _MARK, None)
    return found if isinstance(found, Overlay) else None


def judge(made: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Check a call of an overlay without making it; the foreign package need not be installed.

    Args:
        made: The overlay.
        args: Arguments as the foreign function takes them.
        kwargs: The same, by name.

    Raises:
        ContractViolation: The call breaks the contract.
        TypeError: It is no overlay, or its parameters are others.
    """
    entry = getattr(made, "__tensorpact__", None)
    if overlay_of(made) is None:
        raise TypeError(f"{made!r} is no overlay")
    if not isinstance(entry, Entry):
        return  # contracts were off at import
    bound = inspect.signature(entry.body).bind(*args, **kwargs)
    bound.apply_defaults()
    raise_error(entry.judge(tuple(bound.arguments.values())))
