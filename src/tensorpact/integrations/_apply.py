"""Contracts on functions of somebody else: put on by name, before or after the import, and taken off again."""

import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import tensorpact._decorator as decorating
from tensorpact._contract import Contract
from tensorpact._entry import Entry

from ._apply_arrivals import arrivals, complete
from ._apply_errors import ApplyError, LeftInPlaceWarning
from ._apply_overlay import Overlay, overlay_of
from ._apply_places import Place, aliases, exchange, place_text
from ._apply_targets import Found, TargetName, look_up, parse, require_exchangeable, require_findable
from ._apply_wrap import contracted

_lock = threading.RLock()


class Applied:
    """A contract on a foreign function; a context manager that takes it off at its end.

    Attributes:
        target: The function, as ``module:name``; an operator, as ``torch.ops.ns.name``.
        contract: What was put on it; None for its annotations alone.
        function: The contracted function; None as long as the module is not imported.
    """

    def __init__(
        self,
        target: TargetName,
        overlay: Overlay,
        packages: Sequence[str],
        check_returns: bool,
    ) -> None:
        self._name = target
        self.target = str(target)
        self.contract = overlay.contract
        self.function: FunctionType | None = None
        self._overlay = overlay
        self._packages = tuple(packages)
        self._check_returns = check_returns
        self._entry: Entry | None = None
        self._original: Any = None
        self._places: list[Place] = []
        self._beside: list[Place] = []
        self._removed = decorating.disabled

    def __enter__(self) -> "Applied":
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "pending" if self.pending else "active" if self.active else "removed"
        return f"<contract on {self.target}, {state}>"

    @property
    def pending(self) -> bool:
        """Whether the module is still to come."""
        return not self._removed and self._entry is None

    @property
    def active(self) -> bool:
        """Whether calls of the function are checked; a module that has just come is looked at first.

        Raises:
            ApplyError: The module has come and the contract does not fit.
        """
        module = complete(self._name.module) if self.pending else None
        if module is not None:
            self.arrived(module)
        return self._entry is not None and not self._removed

    @property
    def places(self) -> tuple[str, ...]:
        """Where the function was exchanged."""
        return tuple(place.text for place in self._places)

    def start(self) -> None:
        """Put the contract on, now or when the module comes."""
        module = complete(self._name.module)
        if module is not None:
            self.arrived(module)
        else:
            require_findable(self._name)
        arrivals.expect(self._name.module, self.arrived)

    def arrived(self, module: ModuleType) -> None:
        """Put the contract on the function of a module that has just been executed.

        Raises:
            ApplyError: The function is not there, or is none that the contract fits.
        """
        with _lock:
            if self._removed:
                return
            found = look_up(self._name, module)
            if found.function is self.function:
                return
            old, places = self._entry, self._places
            entry, function = contracted(found.function, self._name, self._overlay, self._check_returns)
            self._places = []
            # Made anew of what stood there before, or a second module would find the first one's.
            beside, self._beside = self._beside, []
            for place in beside:
                place.restore()
            try:
                self._exchange(found.function, function, module)
            except ApplyError:
                for place in self._places:
                    place.restore()
                self._places = places
                raise
            # Of a reloaded module: what others imported by name before stays checked.
            self._places += [p for p in places if p.owner is not module and p not in beside]
            self._entry, self.function, self._original = entry, function, found.function
            del old

    def _exchange(self, original: Any, function: FunctionType, module: ModuleType) -> None:
        first = look_up(self._name, module)
        self._places.append(exchange(first, function, place_text(first.owner, first.name)))
        for found in aliases(original, self._packages):
            self._places.append(exchange(found, function, place_text(found.owner, found.name)))
        for owner, name, now in self._overlay.beside(original) if self._overlay.beside is not None else ():
            found = Found(owner, name, inspect.getattr_static(owner, name), original)
            self._beside.append(exchange(found, now, place_text(owner, name)))
            self._places.append(self._beside[-1])

    def remove(self) -> tuple[str, ...]:
        """Take the contract off; once is enough.

        What somebody else has put in its place since stays there, with a :class:`LeftInPlaceWarning`. A contracted
        function that is still held by anyone goes straight to the foreign one from now on.

        Returns:
            The places that were left as they are.
        """
        with _lock:
            if self._removed:
                return ()
            self._removed = True
            arrivals.forget(self._name.module, self.arrived)
            left = tuple(place.text for place in reversed(self._places) if not place.restore())
            for found in aliases(self.function, self._packages) if self.function is not None else ():
                exchange(found, self._original, place_text(found.owner, found.name))
            if self._entry is not None:
                self._entry.retire()
        if left:
            warnings.warn(
                f"the contract on {self.target} is off, but somebody else has changed {', '.join(left)} since; "
                "that stays as it is",
                LeftInPlaceWarning,
                stacklevel=2 if type(self) is Applied else 3,
            )
        return left


def apply(
    contract: Contract | Callable[..., Any] | None,
    target: str | None = None,
    /,
    *,
    stub: Callable[..., Any] | None = None,
    packages: Sequence[str] = (),
    check_returns: bool = False,
) -> Applied:
    """Put a contract on a function of somebody else.

    A module that is not imported yet is not imported for it: the contract comes on when somebody does.

    Args:
        contract: The contract; a ready overlay, which brings target and stub; or None, for the annotations that the
            function has.
        target: ``"pkg.mod:function"``, ``"pkg.mod:Class.method"`` or ``"torch.ops.ns.name"``.
        stub: A function whose annotations stand for those that the foreign one lacks. Parameters are matched by name;
            order and defaults are the foreign function's, and optional ones that the stub does not name pass unchecked.
        packages: Imported packages in which other names of the very same function are exchanged too.
        check_returns: Check the return annotation in ``compiled`` mode too.

    Returns:
        A handle: a context manager, with ``remove()``.

    Raises:
        TargetNotFoundError: The module is not installed, or has no such name.
        NotCallableError: The name is not that of a function.
        OperatorTargetError: It is an operator of torch's own, or a single overload.
        AlreadyAppliedError: The function has a contract.
        StubMismatchError: The stub does not fit its parameters.
        ContractDefinitionError: The contract does not fit the annotations.
    """
    ready = overlay_of(contract)
    if ready is None and contract is not None and not isinstance(contract, Contract):
        raise TypeError(f"{contract!r} is neither a contract nor an overlay")
    made = Overlay(target or "", contract, None) if ready is None and not callable(contract) else ready
    if made is None or not (target or made.target):
        raise TypeError("a contract needs a target, pkg.mod:function")
    chosen = stub if stub is not None else made.stub
    if chosen is not None and not isinstance(chosen, FunctionType):
        raise TypeError(f"a stub is a function with annotations, and not {chosen!r}")
    names = (packages,) if isinstance(packages, str) else tuple(packages)
    name = parse(target or made.target)
    require_exchangeable(name)
    applied = Applied(name, replace(made, stub=chosen), names, check_returns)
    if not decorating.disabled:
        with _lock:
            applied.start()
    return applied
