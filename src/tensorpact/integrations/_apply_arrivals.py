"""Modules that are awaited: told of when they have been imported, and never imported for it."""

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Arrived = Callable[[ModuleType], None]


class Arrivals(MetaPathFinder):
    """A finder that finds nothing itself: it hands a spec of the others on, with a loader that reports.

    Attributes:
        stays_first: Other finders of this package stay behind it, since one in front could keep a module from it.
    """

    stays_first = True

    def __init__(self) -> None:
        self._awaited: dict[str, list[Arrived]] = {}
        self._searching = threading.local()

    def expect(self, module: str, arrived: Arrived) -> None:
        """Report a module each time it is executed, reloading included."""
        self._awaited.setdefault(module, []).append(arrived)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self, module: str, arrived: Arrived) -> None:
        """Report a module no more."""
        waiting = self._awaited.get(module, [])
        if arrived in waiting:
            waiting.remove(arrived)
        if not waiting:
            self._awaited.pop(module, None)
        if not self._awaited and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Find an awaited module as the other finders do."""
        busy: set[str] = self._searching.__dict__.setdefault("names", set())
        if fullname in busy:
            return None
        self.settle()
        if fullname not in self._awaited:
            return None
        busy.add(fullname)
        try:
            spec = self._found(fullname, path, target)
        finally:
            busy.discard(fullname)
        if spec is not None and spec.loader is not None and not isinstance(spec.loader, type):
            self._listen(spec.loader, fullname)
        return spec

    def _found(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find: Any = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _listen(self, loader: Any, name: str) -> None:
        execute: Any = getattr(loader, "exec_module", None)

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.report(name, sys.modules.get(name, module))

        if execute is not None:
            try:
                # On the object: other finders look at the class of a loader.
                loader.exec_module = exec_module
            except AttributeError:
                return  # `settle` will see the module

    def report(self, name: str, module: ModuleType) -> None:
        """Tell those who wait for a module."""
        for arrived in tuple(self._awaited.get(name, ())):
            arrived(module)

    def settle(self) -> None:
        """Report what came in another way: by a finder in front of this one, or put into ``sys.modules``."""
        for name in tuple(self._awaited):
            module = complete(name)
            for arrived in tuple(self._awaited.get(name, ())) if module is not None else ():
                if module is None or not getattr(getattr(arrived, "__self__", None), "pending", True):
                    continue
                try:
                    arrived(module)
                except Exception as bad:  # noqa: BLE001 - the import that happens to come next is not to blame
                    warnings.warn(f"{bad}", RuntimeWarning, stacklevel=2)


def complete(name: str) -> ModuleType | None:
    """A module that is imported and done; None while it is on its way."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if module is None or getattr(spec, "_initializing", False) else module


arrivals = Arrivals()
