"""Documented errors of modules, each with its page and the clauses that raise it."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

from tensorpact._classes import check_of
from tensorpact._contract import Contract
from tensorpact._entry import entry_of
from tensorpact._errors import DocumentedError
from tensorpact.clauses import Let

from ._pages import Page, page_of

#: Looked at where the user names no module. Under ``TENSORPACT=off`` functions carry no contract: the second has them.
DEFAULT_MODULES = ("tensorpact_kernels", "tensorpact_contracts")


@dataclass(frozen=True, slots=True)
class Use:
    """A clause that raises an error.

    Attributes:
        entry_point: Name of the contract.
        clause: The clause as text.
        place: Its place in firing order, from 1; a ``let`` raises nothing and does not count.
        total: Number of clauses that count.
    """

    entry_point: str
    clause: str
    place: int
    total: int


@dataclass(frozen=True, slots=True)
class Record:
    """A documented error, its page and where it is raised.

    Attributes:
        error: The documented error.
        page: Its page, where there is one.
        uses: The clauses that raise it, entry points in the order found and clauses in firing order.
    """

    error: DocumentedError
    page: Page | None
    uses: tuple[Use, ...]

    @property
    def id(self) -> str:
        """Stable id: the public one where the page gives it, else one made from family and slug."""
        public = None if self.page is None else self.page.record_id
        return public or self.error.record_id()


def record_id(error: DocumentedError) -> str:
    """Stable id of a documented error: the public one where its page gives one.

    Args:
        error: The documented error.
    """
    return Record(error, page_of(error), ()).id


def load(modules: Iterable[str] = ()) -> tuple[Record, ...]:
    """The documented errors that modules hold or their contracted functions raise, in firing order.

    Args:
        modules: Module or package names; those of the installed kernels by default.

    Raises:
        ImportError: A named module does not import.
        ContractDefinitionError: A page is malformed.
    """
    uses: dict[DocumentedError, list[Use]] = {}
    seen: set[int] = set()
    for found in _found(modules):
        if isinstance(found, DocumentedError):
            uses.setdefault(found, [])
        elif id(found) not in seen:
            seen.add(id(found))
            for error, use in _uses(found):
                uses.setdefault(error, []).append(use)
    return tuple(Record(error, page_of(error), tuple(places)) for error, places in uses.items())


def _uses(contract: Contract) -> Iterator[tuple[DocumentedError, Use]]:
    statements = [clause for clause in contract.clauses if not isinstance(clause, Let)]
    for place, clause in enumerate(statements, 1):
        if clause.error is not None:
            yield clause.error, Use(contract.name, str(clause), place, len(statements))


def _found(modules: Iterable[str]) -> Iterator[Contract | DocumentedError]:
    named = tuple(modules)
    errors: list[DocumentedError] = []
    for name in named or DEFAULT_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            if named:
                raise
            continue
        for found in _in_module(module):
            if isinstance(found, Contract):
                yield found
            else:
                errors.append(found)
    # After the contracts, so that those keep firing order and what no clause raises comes last.
    yield from errors


def _in_module(module: ModuleType) -> list[Contract | DocumentedError]:
    """What a module holds; a package that holds nothing itself is searched below."""
    here = list(_in_namespace(vars(module).values()))
    if here or not hasattr(module, "__path__"):
        return here
    below: list[Contract | DocumentedError] = []
    for info in pkgutil.iter_modules(module.__path__, f"{module.__name__}."):
        try:
            below += _in_module(importlib.import_module(info.name))
        except ImportError:
            # A part of the package that wants something which is not installed has no say in the rest.
            continue
    return below


def _in_namespace(values: Iterable[object]) -> Iterator[Contract | DocumentedError]:
    for value in values:
        if isinstance(value, (Contract, DocumentedError)):
            yield value
        elif isinstance(value, type):
            yield from _of_functions((check_of(value), *vars(value).values()))
        else:
            yield from _of_functions((value,))


def _of_functions(values: Iterable[object]) -> Iterator[Contract]:
    for value in values:
        entry = entry_of(value.fget if isinstance(value, property) else value)
        if entry is not None:
            yield entry.contract
