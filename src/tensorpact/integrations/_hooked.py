"""What an instrumented module calls: definitions contracted as they are made, unless a decorator says otherwise."""

import dataclasses
import functools
import sys
import threading
import typing
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

from tensorpact._frames import caller_frame

T = TypeVar("T")

#: Packages whose decorators compile the source of a function: what they are given has to stay as it was written.
COMPILERS = ("triton", "torch.jit", "torch._jit_internal", "numba", "cutlass", "tilelang", "helion", "warp", "taichi")
#: Parts of them that run a function as it is.
_HARMLESS = ("triton.testing",)
_LEAVES_ALONE = frozenset({"no_type_check", "overload"})
_ENGINE = "tensorpact._decorator"


class Transparent(Protocol):
    """A decorator that gives back what it takes."""

    def __call__(self, made: T, /) -> T: ...


class _Pending(threading.local):
    def __init__(self) -> None:
        self.decorators: list[Any] = []


_pending = _Pending()
#: Name of every instrumented module to its hook; a module that is loaded again has a new one.
instrumented: dict[str, "ModuleHook"] = {}


class ModuleHook:
    """The hook of one module, under ``__tensorpact_hook__`` in its globals.

    Attributes:
        module: Name of the module.
        check_returns: Whether return annotations are checked in ``compiled`` mode too.
        contracts: Functions and dataclasses with a contract, those contracted by hand included; each definition once.
    """

    def __init__(self, module: str, check_returns: bool) -> None:
        self.module = module
        self.check_returns = check_returns
        self.contracts: set[str] = set()
        self._left_alone: set[str] = set()
        self._by_hand: set[str] = set()
        instrumented[module] = self

    def seen(self, decorator: T) -> T:
        """Take notice of a decorator that stands above the hook's own."""
        _pending.decorators.append(decorator)
        return decorator

    def function(self, name: str, count: int) -> Transparent:
        """The decorator next to a function.

        Args:
            name: Qualified name of the function.
            count: How many decorators stand above.
        """
        if self._opens(name, count):
            return _same

        def decorate(function: Any) -> Any:
            if not isinstance(function, FunctionType) or not function.__annotations__ or _is_device_code(function):
                return function
            from tensorpact._decorator import contract_at

            made = contract_at(function, caller_frame(1), self.check_returns)
            if made is not function:
                self.contracts.add(name)
            return made

        return cast(Transparent, decorate)

    def opens(self, name: str, count: int) -> Transparent:
        """The decorator next to a class: nothing is done, but what its body defines may have to be left alone."""
        self._opens(name, count)
        return _same

    def made(self, name: str) -> Transparent:
        """The decorator above all others of a class: dataclasses have their fields checked."""

        def decorate(cls: Any) -> Any:
            own: dict[str, Any] = getattr(cls, "__dict__", {})
            fresh = dataclasses.is_dataclass(cast(object, cls)) and "__dataclass_fields__" in own and "__init__" in own
            if not fresh or name in self._left_alone | self._by_hand or not own.get("__annotations__"):
                return cls
            from tensorpact._decorator import contract_at

            before = own["__init__"]
            cls = contract_at(cls, caller_frame(1), self.check_returns)
            if vars(cls)["__init__"] is not before:
                self.contracts.add(name)
            return cls

        return cast(Transparent, decorate)

    def _opens(self, name: str, count: int) -> bool:
        """Whether a definition is left alone: by a decorator, or because it stands inside one that is."""
        decorators = _pending.decorators[-count:] if count else []
        del _pending.decorators[len(_pending.decorators) - count :]
        parts = name.split(".")
        around = {".".join(parts[:i]) for i in range(1, len(parts))}
        alone = bool(around & self._left_alone) or any(_leaves_alone(d) for d in decorators)
        (self._left_alone.add if alone else self._left_alone.discard)(name)
        by_hand = any(_module_of(d) == _ENGINE for d in decorators)
        (self._by_hand.add if by_hand else self._by_hand.discard)(name)
        # Under TENSORPACT=off a decorator gives back what it takes.
        if by_hand and not alone and not sys.modules[_ENGINE].disabled:
            self.contracts.add(name)
        return alone or by_hand


def _same(made: T) -> T:
    return made


def _unwrapped(decorator: Any) -> Any:
    while isinstance(decorator, functools.partial):
        decorator = cast("functools.partial[Any]", decorator).func
    return decorator


def _module_of(decorator: Any) -> str:
    inner = _unwrapped(decorator)
    found = getattr(inner, "__module__", None) or type(inner).__module__
    return found if isinstance(found, str) else ""


def _is_of(module: str, packages: Iterable[str]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def _leaves_alone(decorator: Any) -> bool:
    module = _module_of(decorator)
    if module in ("typing", "typing_extensions"):
        return getattr(decorator, "__name__", "") in _LEAVES_ALONE
    return _is_of(module, COMPILERS) and not _is_of(module, _HARMLESS)


def _is_device_code(function: Callable[..., Any]) -> bool:
    """Whether a parameter is a compile-time constant of Triton: a device function, whatever decorates it."""
    return any(_is_constexpr(hint) for hint in function.__annotations__.values())


def _is_constexpr(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.rpartition(".")[2].strip("'\" ") == "constexpr"
    hint = typing.get_origin(hint) or hint
    return getattr(hint, "__name__", "") == "constexpr" and _is_of(_module_of(hint), ("triton",))
