"""Contracted functions found by name."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from tensorpact._classes import check_of
from tensorpact._entry import Entry, entry_of
from tensorpact._errors import ContractDefinitionError


class TargetError(Exception):
    """A target does not name a contracted function."""


@dataclass(frozen=True, slots=True)
class Target:
    """One contracted function.

    Attributes:
        module: Module to import it from.
        name: Qualified name inside the module.
        function: What a caller calls.
        entry: The contract behind it.
        cls: Class that it is a method of, where that is known.
    """

    module: str
    name: str
    function: Any
    entry: Entry
    cls: type | None = None

    @property
    def text(self) -> str:
        """How the command line names it."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, slots=True)
class Broken:
    """A module whose contracts do not even import."""

    name: str
    error: ContractDefinitionError


def find(names: Iterable[Any]) -> list[Target | Broken]:
    """Targets of ``MODULE``, ``MODULE:FUNCTION``, or contracted functions handed over themselves.

    A function that has several names is there once, under the first of them.

    Raises:
        TargetError: Nothing with a contract is there.
    """
    found: list[Target | Broken] = []
    for name in names:
        try:
            some = list(_named(name) if isinstance(name, str) else _given(name))
        except ContractDefinitionError as bad:
            found.append(Broken(str(name), bad))
            continue
        for target in some:
            if not any(isinstance(f, Target) and f.function is target.function for f in found):
                found.append(target)
    return found


def _given(function: Any) -> Iterator[Target]:
    if isinstance(function, type):
        found = list(_of_class(function.__module__, function.__qualname__, function))
        if not found:
            raise TargetError(f"{function!r} has no contract")
        yield from found
        return
    entry = entry_of(function)
    if entry is None:
        raise TargetError(f"{function!r} has no contract")
    cls = _class_around(function, entry)
    if cls is not None:
        _belong(entry, cls)
    # Of a bound method the function is meant: its object is an argument like others.
    bound = getattr(function, "__self__", None)
    free = function if bound is None or isinstance(bound, type) else function.__func__
    yield Target(entry.body.__module__, entry.body.__qualname__, free, entry, cls)


def _class_around(function: Any, entry: Entry) -> type | None:
    """The class that a method belongs to, of a bound one that of its object; None where it cannot be found."""
    bound = getattr(function, "__self__", None)
    if bound is not None:
        return cast("type[Any]", bound if isinstance(bound, type) else type(bound))
    home = entry.body.__qualname__.rpartition(".")[0]
    found: Any = sys.modules.get(entry.body.__module__)
    for part in home.split(".") if home else ():
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _named(name: str) -> Iterator[Target]:
    module_name, _, path = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as bad:
        raise TargetError(f"{module_name} does not import: {bad}") from bad
    if path:
        found: Any = module
        for part in path.split("."):
            if not hasattr(found, part):
                raise TargetError(f"{module_name} has no {path}")
            found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        if inspect.isclass(found) and (targets := list(_of_class(module_name, path, found))):
            yield from targets
            return
        entry = entry_of(found)
        if entry is None:
            raise TargetError(f"{name} has no contract")
        cls = _class_around(found, entry)
        if cls is not None:
            _belong(entry, cls)
        yield Target(module_name, path, found, entry, cls)
        return
    some = False
    for target in _members(module_name, module):
        some = True
        yield target
    if not some:
        raise TargetError(f"{module_name} has no contracted function")


def _of_class(module_name: str, name: str, cls: type) -> Iterator[Target]:
    """The check of a dataclass's fields, where there is one, and the contracted methods of the class itself."""
    check = check_of(cls)
    entry = entry_of(check)
    if entry is not None:
        _belong(entry, cls)
        yield Target(module_name, name, check, entry, cls)
    for inner, member in vars(cls).items():
        entry = entry_of(member)
        if entry is not None:
            _belong(entry, cls)
            yield Target(module_name, f"{name}.{inner}", member, entry, cls)


def _belong(entry: Entry, cls: type) -> None:
    # What is wrong with it is told by whoever asks for its terms.
    with contextlib.suppress(ContractDefinitionError):
        entry.belong(cls)


def _members(module_name: str, module: Any) -> Iterator[Target]:
    top = module_name.partition(".")[0]
    for name, value in cast("dict[str, Any]", vars(module)).items():
        if isinstance(value, type):
            alias = name != value.__name__ and vars(module).get(value.__name__) is value
            if value.__module__.partition(".")[0] == top and not alias:
                yield from _of_class(module_name, name, value)
            continue
        entry = entry_of(value) if not inspect.ismodule(value) else None
        # What a module merely borrows from another distribution is not its own to verify.
        if entry is not None and entry.body.__module__.partition(".")[0] == top:
            yield Target(module_name, name, value, entry)
