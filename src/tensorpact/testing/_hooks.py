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

    The factory is asked again for every draft, so that an object can be met in several states; what it returns is
    copied for every call. A package may also have ``arguments(name, rng)`` in a module ``examples`` beside the module
    of the method. It may stand there for functions too, where groups of optional arguments make drawing hopeless.

    Args:
        function: The contracted function.
        factory: Returns parameter name to argument, ``self`` included, given a source of chance.
    """
    _factories[_key(function)] = factory


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
