"""What users add to drawn arguments: values that make sense, single arguments, or whole calls."""

import importlib
import importlib.util
import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

from tensorpact._classes import check_of
from tensorpact._entry import Entry, entry_of

__all__ = ["register_argument", "register_arguments", "register_values"]

Make = Callable[[random.Random], Any]
Fill = Callable[[dict[str, Any], random.Random], None]
Factory = Callable[[random.Random], dict[str, Any]]
Mistake = Callable[[dict[str, Any]], None]

_fills: dict[str, Fill] = {}
_factories: dict[str, Factory] = {}
_makes: dict[tuple[str, str], Make] = {}
#: Values that a registered argument is tried with in one run.
_TRIED = 4


def _key(function: Any) -> str:
    if isinstance(function, str):
        return function
    entry = entry_of(check_of(function) if isinstance(function, type) else function)
    if entry is None:
        raise TypeError(f"{function!r} has no contract")
    return entry.owner


def register_values(function: Any, fill: Fill) -> None:
    """Say which values drawn arguments hold: indices in range, offsets in order.

    ``verify`` draws shapes, dtypes and strides; integer tensors hold zeros unless a fill writes into them. A package
    may also have a module ``examples`` beside the module of an entry point, with ``fill(name, arguments, rng)`` for
    all of its entry points, which needs no registration and is found in subprocesses too. Where a contract reads
    values, ``mistakes(name)`` beside it returns functions that each break one rule, by writing into ``arguments`` too:
    the searches then fill every call, and try these for a witness.

    Args:
        function: The contracted function, or the name of its contract.
        fill: Writes into the tensors of ``arguments`` in place, or replaces scalars, given a source of chance.
    """
    _fills[_key(function)] = fill


def register_argument(function: Any, name: str, make: Make) -> None:
    """Say how one argument is made whose annotation does not: an object of a class, a callable, a configuration.

    All other arguments are drawn as ever. For a contracted dataclass the name is that of a field.

    Args:
        function: The contracted function or dataclass, or the name of its contract.
        name: The parameter.
        make: Returns a value, given a source of chance; it is copied for every call where it can be.

    Raises:
        TypeError: The function has no contract, or no such parameter.
    """
    key = _key(function)
    if not isinstance(function, (str, type)) and name not in inspect.signature(function).parameters:
        raise TypeError(f"{key} has no parameter {name!r}")
    _makes[key, name] = make


def register_arguments(function: Any, factory: Factory) -> None:
    """Say how valid arguments are made where they cannot be drawn, as for a method.

    The factory is asked again for every draft, so that an object can be met in several states; what it returns is
    copied for every call. A package may also have ``arguments(name, rng)`` in a module ``examples`` beside the module
    of the method. It may stand there for functions too, where groups of optional arguments make drawing hopeless.

    Args:
        function: The contracted function.
        factory: Returns parameter name to argument, ``self`` included, given a source of chance.
    """
    _factories[_key(function)] = factory


def values_of(entry: Entry, name: str) -> tuple[Any, ...]:
    """Values of an argument as its registered function makes them; none where there is none."""
    keys = (entry.owner, entry.owner.removesuffix(".fields"), entry.contract.name)
    make = next((m for k in keys if (m := _makes.get((k, name))) is not None), None)
    return () if make is None else tuple(make(random.Random(i)) for i in range(_TRIED))


def factory_of(entry: Entry) -> Factory | None:
    """The registered factory of an entry point, or ``arguments`` of the module ``examples`` in its package."""
    found = _factories.get(entry.owner)
    if found is not None:
        return found
    shared = _example(entry, "arguments")
    return None if shared is None else lambda rng: shared(entry.contract.name, rng)


def fill_of(entry: Entry) -> Fill | None:
    """The registered fill of an entry point, or that of the module ``examples`` in its package."""
    found = _fills.get(entry.owner) or _fills.get(entry.contract.name)
    if found is not None:
        return found
    shared = _example(entry, "fill")
    return None if shared is None else lambda arguments, rng: shared(entry.contract.name, arguments, rng)


def mistakes_of(entry: Entry) -> Sequence[Mistake]:
    """Values that break a rule of an entry point, as the module ``examples`` in its package knows them."""
    shared = _example(entry, "mistakes")
    return () if shared is None else tuple(shared(entry.contract.name))


def _example(entry: Entry, function: str) -> Any:
    """A function of the module ``examples`` beside the module of an entry point; None where there is none."""
    package = entry.body.__module__.rpartition(".")[0]
    name = f"{package}.examples"
    if not package or importlib.util.find_spec(name) is None:
        return None
    return getattr(importlib.import_module(name), function, None)
