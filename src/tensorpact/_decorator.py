"""The decorator, on functions, methods of every kind, properties and dataclasses."""

import contextlib
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType
from typing import Any, TypeVar, cast, overload

import tensorpact._modes as modes

from ._annotations import UnresolvedHintError
from ._classes import contract_dataclass
from ._contract import Contract
from ._entry import Entry, entry_of
from ._errors import ContractDefinitionError
from ._frames import caller_frame
from ._hints import annotations_of, holds_text

#: A function, or a dataclass: either comes back as what it was.
F = TypeVar("F", bound=Callable[..., Any])
#: Whether ``TENSORPACT=off`` stood in the environment at import: decorators then return the function itself.
disabled: bool = modes.current == modes.OFF


def _decorate(
    function: Any,
    contract: Contract | None,
    check_returns: bool,
    local: Mapping[str, Any],
    fields: bool = True,
    hooked: bool = False,
) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        kind: Any = staticmethod if isinstance(function, staticmethod) else classmethod
        return kind(_decorate(cast(Any, function).__func__, contract, check_returns, local, fields))
    if isinstance(function, property):
        parts = [
            None if f is None else _decorate(f, contract, check_returns, local, fields)
            for f in (function.fget, function.fset, function.fdel)
        ]
        return property(*parts, doc=function.__doc__)
    if isinstance(function, type):
        if disabled or getattr(function, "__no_type_check__", False):
            return function
        return contract_dataclass(
            function, lambda check: _decorate(check, contract, check_returns, local, hooked=hooked)
        )
    if not isinstance(function, FunctionType):
        raise ContractDefinitionError(f"{function!r} is no Python function")
    if getattr(function, "__no_type_check__", False):
        if contract is not None:
            raise ContractDefinitionError(
                f"{function.__qualname__} has a contract and @no_type_check; it is one of them"
            )
        return function
    known = entry_of(function)
    if known is not None and known.hooked and (contract is not None or check_returns > known.check_returns):
        # Written by hand above the import hook: it replaces what the hook made, or checks a wrapper around that.
        function = known.body if known.makes(function) else function
        known = None
    if known is not None:
        if contract not in (None, known.contract) or check_returns > known.check_returns:
            raise ContractDefinitionError(
                f"{function.__qualname__} has a contract already; give all of it to one decorator"
            )
        return function
    if disabled:
        if contract is not None:
            # What is written, and what belongs to whom, is asked for without any check.
            function.__dict__["__tensorpact_contract__"] = contract
        return function
    made = contract or Contract(function.__name__, family=function.__module__.rpartition(".")[2])
    entry = Entry(function, made, check_returns, local, hooked)
    home, _, _ = function.__qualname__.rpartition(".")
    in_class = bool(home) and not home.endswith("<locals>")
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    if in_class and names[:1] == ("self",):
        entry.rehearse(may_have_fields=fields)
    else:
        # A hint may name what the module defines further down: the first call looks again, and fails loudly.
        with contextlib.suppress(UnresolvedHintError):
            entry.read()
    return entry.function()


@overload
def contract(function: F, /) -> F: ...


@overload
def contract(contract: Contract | None = None, /, *, check_returns: bool = False) -> Callable[[F], F]: ...


def contract(function: Any = None, /, *, check_returns: bool = False) -> Any:
    """Enforce the annotations of a function, and a contract where one is given.

    Args:
        function: The function, or a :class:`Contract` (the result is then a decorator).
        check_returns: Check the return annotation in ``compiled`` mode too.

    Raises:
        ContractDefinitionError: The annotations or the contract are wrong.
    """
    given = function if isinstance(function, Contract) else None
    frame = caller_frame(1)
    fields = _may_have_fields(frame)
    if function is None or given is not None:

        def decorate(inner: Any) -> Any:
            return _decorate(inner, given, check_returns, _visible(inner, frame), fields)

        return decorate
    return _decorate(function, None, check_returns, _visible(function, frame), fields)


def contract_at(function: Any, frame: FrameType, check_returns: bool) -> Any:
    """Contract a definition for the import hook.

    Args:
        function: The function or dataclass.
        frame: Where it is defined.
        check_returns: As in :func:`contract`.

    Raises:
        ContractDefinitionError: The annotations are wrong.
    """
    return _decorate(function, None, check_returns, _visible(function, frame), _may_have_fields(frame), hooked=True)


def _may_have_fields(frame: FrameType) -> bool:
    # Seen from the body of a class without annotated names there are no fields to wait for, but for inherited ones.
    return "__qualname__" not in frame.f_locals or bool(frame.f_locals.get("__annotations__"))


def _visible(function: Any, frame: FrameType) -> Mapping[str, Any]:
    """Names of the function or class around a definition, kept only while a string annotation may need them."""
    inner = getattr(function, "__func__", function)
    annotations = annotations_of(inner)
    around, name = frame.f_code.co_qualname, getattr(inner, "__qualname__", "")
    if not any(holds_text(a) for a in annotations.values()) or frame.f_locals is frame.f_globals:
        return {}
    return dict(frame.f_locals) if name.startswith((f"{around}.<locals>.", f"{around}.")) else {}
