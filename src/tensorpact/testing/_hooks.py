"""What users add to drawn arguments: values that make sense, or whole arguments where none can be drawn."""

import importlib
import importlib.util
import random
from collections.abc import Callable, Sequence
from typing import Any

from tensorpact._entry import Entry, entry_of

Fill = Callable[[dict[str, Any], random.Random], None]
Factory = Callable[[random.Random], dict[str, Any]]
Mistake = Callable[[dict[str, Any]], None]

_fills: dict[str, Fill] = {}
_factories: dict[str, Factory] = {}


def _key(function: Any) -> str:
    if isinstance(function, str):
        return function
    entry = entry_of(function)
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


def register_arguments(function: Any, factory: Factory) -> None:
    """Say how valid arguments are made where they cannot be drawn, as for a method.

    Args:
        function: The contracted function.
        factory: Returns parameter name to argument, ``self`` included, given a source of chance.
    """
    _factories[_key(function)] = factory


def factory_of(entry: Entry) -> Factory | None:
    """The registered factory of an entry point."""
    return _factories.get(entry.owner)


def fill_of(entry: Entry) -> Fill | None:
    """The registered fill of an entry point, or that of the module ``examples`` in its package."""
    found = _fills.get(entry.owner) or _fills.get(entry.contract.name)
    if found is not None:
        return found
    shared = getattr(_examples_of(entry), "fill", None)
    if shared is None:
        return None
    return lambda arguments, rng: shared(entry.contract.name, arguments, rng)


def mistakes_of(entry: Entry) -> Sequence[Mistake]:
    """Values that break a rule of an entry point, as the module ``examples`` in its package knows them."""
    shared = getattr(_examples_of(entry), "mistakes", None)
    return () if shared is None else tuple(shared(entry.contract.name))


def _examples_of(entry: Entry) -> Any:
    package = entry.body.__module__.rpartition(".")[0]
    name = f"{package}.examples"
    if not package or importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name)
